"""The worker that checks whether a daemon may begin again with the code and the pipeline file of now.

Its result names the code's version, the version of the record by which it takes over, and the keys of the
configuration whose values differ. It ends with an error where the daemon could not start, and where a value
differs that a running daemon cannot change.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from stoker.config.changes import KEPT, changed_keys
from stoker.config.checks import Fault
from stoker.config.load import load_pipeline, refuse
from stoker.kit.handover import VERSION
from stoker.kit.lock import require_own_state
from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import UnknownFormat
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.state import read_state


def main(task: dict[str, Any], _: Report) -> dict[str, Any]:
    """Checks `file` against `config`, the values that the running `daemon` has."""
    importlib.import_module(f"stokerd.{task['daemon']}")
    pipeline = load_pipeline(task["file"])
    changed = changed_keys(task["daemon"], task["config"], pipeline.model_dump(mode="json"))
    fixed = [key for key, when in changed.items() if when == "stop and start"]
    refuse(pipeline, [Fault(tuple(key.split(".")), KEPT) for key in fixed])
    require_own_state(pipeline)
    if task["daemon"] == TRAIN_SUPERVISOR:
        _require_readable(task["work"]["run"]["state"])
    return {"version": version("stoker"), "handover": VERSION, "changed": [*changed]}


def _require_readable(state: Mapping[str, Any]) -> None:
    """Raises UnknownFormat where this code cannot go on from the state of the one that runs."""
    try:
        read_state(state)
    except ValueError as problem:
        why = f"this code cannot take over the running launch; restart the supervisor instead: {problem}"
        raise UnknownFormat(why) from problem


if __name__ == "__main__":
    run_worker(main)
