"""Bundles, which the commands of several extras read."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

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


def load_bundle(bundle: Path, **options: str) -> tuple[Any, Any]:
    """Returns the tokenizer and the model of a proven bundle; DataError where transformers does not know it.

    `options` are those of `from_pretrained`. Call use_transformers first.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True, **options}
    try:
        tokenizer = AutoTokenizer.from_pretrained(bundle, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(bundle, dtype="auto", **safe)
    except (ValueError, KeyError, ImportError) as error:
        raise DataError(f"{bundle}: transformers cannot load this model: {error}") from error
    return tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu")
