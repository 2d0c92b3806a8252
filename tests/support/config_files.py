"""Small pipeline files for tests of the configuration and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.config.schema_train import Train
from stoker.store.errors import ConfigError

MINIMAL = """\
name: mine
state: state
hot: hot
dataset:
  name: prose
  source: {kind: folder, path: parquet}
train:
  steps: 10
  model: tiny
"""


TINY = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "ffn_width": 8}


def train_of(**keys: Any) -> Train:
    """The section train of a file with these keys, of 100 steps."""
    return Train.model_validate({"model": TINY, "steps": 100, **keys})


def write_pipeline(directory: Path, text: str = MINIMAL, name: str = "mine") -> Path:
    """Write a pipeline file and return its path."""
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


def load_text(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> Pipeline:
    """Load a pipeline file of this text."""
    return load_pipeline(write_pipeline(directory, text), environ or {})


def problems_of(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the ConfigError that this text gives, without the directory before the file's name."""
    with pytest.raises(ConfigError) as caught:
        load_text(directory, text, environ)
    return [line.removeprefix(f"{directory}/") for line in str(caught.value).splitlines()]
