"""transformers 4 in a directory of its own, laid before the packages of the test's Python."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

# 4.51 is the last that finds its oldest checkpoints by the numbers in their names, whatever follows those.
# What it needs and the tests' environment lacks or has too new; torch and accelerate serve both.
# The Trainer imports the `datasets` that it finds, so one that goes with the old huggingface_hub comes along.
WANTED = (
    *("transformers==4.51.3", "huggingface_hub>=0.30,<1.0", "tokenizers>=0.21,<0.22", "datasets>=3,<4"),
    *("requests", "urllib3", "charset-normalizer", "idna", "certifi"),
)


class NotHere(Exception):
    """It cannot be installed on this machine."""


@functools.cache
def transformers_4() -> Path:
    """The directory to put first on PYTHONPATH; installed once for this user and Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-tests"
    place = cache / f"transformers-4.51-python-{sys.version_info.major}.{sys.version_info.minor}"
    made = place.with_name(f"{place.name}.made")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)
            _install(place)
            made.touch()
    return place


def why_not() -> str | None:
    """Why there is no transformers 4 here; None where there is."""
    try:
        transformers_4()
    except NotHere as problem:
        return str(problem)
    return None


def _install(place: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
    try:
        done = subprocess.run([*pip, *WANTED], capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        raise NotHere("pip did not end within 300 s") from None
    if done.returncode:
        raise NotHere(f"pip: {done.stderr.strip().splitlines()[-1:]}")
