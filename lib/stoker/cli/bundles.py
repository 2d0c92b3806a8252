"""Bundles, which the commands of several extras read."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from stoker.store.checksums import SUMS, prove_checksums
from stoker.store.errors import DataError, UnavailableError


def is_bundle(directory: Path) -> bool:
    """Whether it is laid out as a bundle, proven or not."""
    return (directory / "config.json").is_file() and (directory / SUMS).is_file()


def proven_bundle(directory: Path) -> Path:
    """Returns the bundle's directory, links followed, with each of its files proven by SHA256SUMS.

    Raises DataError where it is no bundle or not whole, StorageError where it cannot be read now.
    """
    found = directory.resolve()
    if not is_bundle(found):
        why = f"it is to have config.json and {SUMS}"
        raise DataError(f"{directory} is no bundle: {why}; `stoker bundle` writes one")
    _, difference = prove_checksums(found)
    if difference:
        raise DataError(f"{directory} is not whole: {difference}; bundle or fetch the model again")
    return found


def use_transformers(extra: str, *packages: str) -> None:
    """Keeps transformers off the net in this process; UnavailableError where a package is missing."""
    for package in ("transformers", *packages):
        if importlib.util.find_spec(package) is None:
            raise UnavailableError(f"{package} is not installed; `pip install 'stoker[{extra}]'` installs it")
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
