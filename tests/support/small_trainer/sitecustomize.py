"""Runs at the start of every Python with this directory on its path; see support.training.small_trainer."""

import importlib
import os
import sys
import types
from pathlib import Path

words = sys.orig_argv
if "stoker.kit.exec" in words[:4]:  # the launcher, which runs a module of ours in this interpreter
    words = words[words.index("--") + 1 :]
if os.environ.get("STOKER_TEST_TRAINER") == "small" and "stoker.training.trainer" in words[1:4]:
    loading = types.ModuleType("stoker.training.load")
    # Imported when it is asked for, as torch is: a stop must work meanwhile.
    loading.__getattr__ = lambda name: getattr(importlib.import_module("unigram"), name)
    sys.path.append(str(Path(__file__).parent))
    sys.modules[loading.__name__] = loading
