"""Runs of a trainer of the user's own: a script of a few lines beside a pipeline file without data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from stoker.config.load import load_pipeline
from support.pipelines import DataPipeline
from support.training import TrainPipeline


def make_external(home: Path, script: str, *words: str, name: str = "own", **keys: Any) -> TrainPipeline:
    """Write the script as train.py and a file that runs it; `keys` are added by their path, "__" for dots."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "train.py").write_text(script)
    body: dict[str, Any] = {
        "name": name,
        "state": "state",
        "train": {"command": [sys.executable, "train.py", *words]},
        "supervise": {"backoff": {"first": "0.1s", "most": "0.2s"}},
        "metrics": {"ports": {"download": 0, "shard": 0, "train": 0}},
    }
    for key, value in keys.items():
        holder, (*sections, last) = body, key.split("__")
        for section in sections:
            holder = holder.setdefault(section, {})
        holder[last] = value
    file = home / f"{name}.yaml"
    file.write_text(yaml.safe_dump(body))
    return TrainPipeline(DataPipeline(home, file, load_pipeline(file)), with_torch=True)
