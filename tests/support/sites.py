"""Code of a test's own in every Python that is started."""

from __future__ import annotations

from pathlib import Path

SMALL_TRAINER = Path(__file__).with_name("small_trainer")
_TRAINERS_SITE = f"""
import os, runpy, sys
if "stoker.kit.exec" in sys.orig_argv[:4]:  # the launcher, which runs a module of ours in this interpreter
    sys.orig_argv = sys.orig_argv[sys.orig_argv.index("--") + 1 :]
if "STOKER_TEST_TRAINER" in os.environ:
    runpy.run_path({str(SMALL_TRAINER / "sitecustomize.py")!r})
"""


def write_site(directory: Path, code: str) -> None:
    """Have the code run where the directory is on PYTHONPATH; sys.orig_argv says in what process it is."""
    (directory / "sitecustomize.py").write_text(_TRAINERS_SITE + code)
