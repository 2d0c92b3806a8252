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
from stoker.kit.handover import VERSION
from stoker.kit.lock import require_own_state
from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import UnknownFormat
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.state import read_state

# The daemon's locks and its port; of the supervisor also what its run began with and its trainer has open.
FIXED = ("name", "state", "metrics")
FIXED_IN_RUN = (
    *("hot", "dataset.name", "dataset.version"),
    *("train.run", "train.seed", "train.init_from", "train.model", "train.seq_len", "train.optimizer.name"),
)


def main(task: dict[str, Any], _: Report) -> dict[str, Any]:
    """Checks `file` against `config`, the values that the running `daemon` has."""
    importlib.import_module(f"stokerd.{task['daemon']}")
    pipeline = load_pipeline(task["file"])
    changed = list(changes(task["config"], pipeline.model_dump(mode="json")))
    text = "a reload cannot change it; put the old value back, or stop the daemon and start it again"
    is_trainers = task["daemon"] == TRAIN_SUPERVISOR
    fixed: tuple[str, ...] = FIXED + FIXED_IN_RUN if is_trainers else FIXED
    if is_trainers and _follows_plan(task["config"]) != pipeline.train.follows_plan:
        changed.append("train.command")
        fixed += ("train.command",)
    kept = [key for key in changed if any(_overlaps(key, one) for one in fixed)]
    refuse(pipeline, [Fault(tuple(key.split(".")), text) for key in kept])
    require_own_state(pipeline)
    if is_trainers:
        _require_readable(task["work"]["run"]["state"])
    return {"version": version("stoker"), "handover": VERSION, "changed": changed}


def _follows_plan(config: Mapping[str, Any]) -> bool:
    train = config["train"]
    return not train.get("command") or (train.get("external") or {}).get("protocol") == "full"


def changes(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yields the dotted keys whose values differ; of a mapping that is on one side alone, its own key.

    A key that the running code does not know counts only where it is on.
    """
    for key in dict.fromkeys([*before, *now]):
        old, new, name = before.get(key), now.get(key), f"{at}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, f"{name}.")
        elif old != new and (key in before or new):
            yield name


def _overlaps(one: str, other: str) -> bool:
    """Returns whether a key is another one, holds it, or lies in it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _require_readable(state: Mapping[str, Any]) -> None:
    """Raises UnknownFormat where this code cannot go on from the state of the one that runs."""
    try:
        read_state(state)
    except ValueError as problem:
        why = f"this code cannot take over the running launch; restart the supervisor instead: {problem}"
        raise UnknownFormat(why) from problem


if __name__ == "__main__":
    run_worker(main)
