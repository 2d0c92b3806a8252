"""What a reload makes of a changed configuration: the keys that differ, and from when on each counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from stoker.config.schema_train import OF_BUILT_IN
from stoker.store.layout import TRAIN_SUPERVISOR

When = Literal["now", "next launch", "stop and start", "refused"]
WHEN: tuple[When, ...] = ("now", "next launch", "stop and start", "refused")
KEPT = "a reload cannot change it; put the old value back, or stop the daemon and start it again"
# The daemon's locks and its port; of the supervisor also what its run began with and its trainer has open.
FIXED: tuple[str, ...] = ("name", "state", "metrics")
FIXED_IN_RUN = (
    *("hot", "dataset.name", "dataset.version"),
    *("train.run", "train.seed", "train.init_from", "train.model", "train.seq_len", "train.optimizer.name"),
)
# What a trainer is started with, or told as it is asked to stop; the supervisor itself uses the others.
AT_LAUNCH = (
    *OF_BUILT_IN,
    *("train.steps", "train.command", "train.external.directory", "train.external.resume"),
    *("train.external.protocol", "supervise.stop_time"),
)


def changed_keys(daemon: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, When]:
    """Returns the dotted keys whose values differ in two dumps, and from when on each counts for a daemon."""
    keys, is_trainers, fixed = list(changes(before, now)), daemon == TRAIN_SUPERVISOR, FIXED
    if is_trainers:
        fixed += FIXED_IN_RUN
        if _follows_plan(before) != _follows_plan(now):
            keys.append("train.command")
            fixed += ("train.command",)
    late = AT_LAUNCH if is_trainers else ()
    return {
        key: "stop and start" if is_of(key, fixed) else "next launch" if is_of(key, late) else "now"
        for key in keys
    }


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


def is_of(key: str, others: tuple[str, ...]) -> bool:
    """Returns whether a key is one of the others, holds one, or lies in one."""
    return any(f"{key}.".startswith(f"{one}.") or f"{one}.".startswith(f"{key}.") for one in others)


def _follows_plan(config: Mapping[str, Any]) -> bool:
    train = config["train"]
    return not train.get("command") or (train.get("external") or {}).get("protocol") == "full"
