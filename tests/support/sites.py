"""Code of a test's own in every Python that is started."""

from __future__ import annotations

from pathlib import Path


def write_site(directory: Path, code: str) -> None:
    """Have the code run where the directory is on PYTHONPATH; sys.orig_argv says in what process it is."""
    (directory / "sitecustomize.py").write_text(code)
