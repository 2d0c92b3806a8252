"""The worker that checks whether a daemon may begin again with the code and the pipeline file of now.

Its result names the code's version, the version of the record by which it takes over, and the keys of the
configuration whose values differ. It ends with an error where the daemon could not start, and where a value
differs that a running daemon cannot change.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from stoker.config.checks import Fault
from stoker.config.load import load_pipeline, refuse
from stoker.config.schema import Pipeline
from stoker.kit.handover import VERSION
from stoker.kit.lock import require_own_state
from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import ConfigError
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.supervise.run.record import configured, parse_record, refusal

FIXED = ("name", "state", "hot", "train.run", "metrics")  # the daemon's locks, its port, its trainer's files


def main(task: dict[str, Any], _: Report) -> dict[str, Any]:
    """Checks `file` against `config`, the values that the running `daemon` has."""
    importlib.import_module(f"stokerd.{task['daemon']}")
    pipeline = load_pipeline(task["file"])
    changed = list(changes(task["config"], pipeline.model_dump(mode="json")))
    text = "a reload cannot change it; put the old value back, or stop the daemon and start it again"
    refuse(pipeline, [Fault(tuple(key.split(".")), text) for key in changed if is_fixed(key)])
    require_own_state(pipeline)
    if task["daemon"] == TRAIN_SUPERVISOR:
        _require_same_run(pipeline)
    return {"version": version("stoker"), "handover": VERSION, "changed": changed}


def changes(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yields the dotted keys whose values differ; of a mapping that is on one side alone, its own key."""
    for key in dict.fromkeys([*before, *now]):
        old, new, name = before.get(key), now.get(key), f"{at}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, f"{name}.")
        elif old != new:
            yield name


def is_fixed(key: str) -> bool:
    """Returns whether a running daemon cannot change a key."""
    return any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED)


def _require_same_run(pipeline: Pipeline) -> None:
    """Raises ConfigError where the run on disk began with other values that never change."""
    file = pipeline.layout.run(pipeline.train.run).record
    if file.exists() and (
        why := refusal(pipeline, parse_record(read_record(file), file).identity, configured(pipeline))
    ):
        raise ConfigError(why)


if __name__ == "__main__":
    run_worker(main)
