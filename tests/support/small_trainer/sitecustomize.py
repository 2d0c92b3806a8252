"""Runs at the start of every Python with this directory on its path; see support.training.small_trainer."""

import importlib
import os
import sys
import types
from pathlib import Path

if os.environ.get("STOKER_TEST_TRAINER") == "small" and "stoker.training.trainer" in sys.orig_argv[1:4]:
    loading = types.ModuleType("stoker.training.load")
    # Imported when it is asked for, as torch is: a stop must work meanwhile.
    loading.__getattr__ = lambda name: getattr(importlib.import_module("unigram"), name)
    sys.path.append(str(Path(__file__).parent))
    sys.modules[loading.__name__] = loading
