"""launches.jsonl: from which step, on which timeline and with which settings the trainer was launched.

Written before each launch. The settings of a committed step are those of the last launch of its history that
began before it; `stoker replay` and the audit go by them.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.plan.timelines import Timelines, ancestry
from stoker.store.log import ChainedLog, read_log
from stoker.store.parsing import require_version

SETTINGS = (
    "steps",
    "global_batch",
    "seq_len",
    "micro_batch",
    "precision",
    "deterministic",
    "threads",
    "model",
    "optimizer",
    "schedule",
    "evaluate",
)


@dataclass(frozen=True)
class Launched:
    """One launch: the step and the timeline it began at, and the settings it had (see SETTINGS)."""

    launch: str
    timeline: int
    resume_step: int
    settings: Mapping[str, Any]
    time: str


def launched_body(launch_body: Mapping[str, Any], *, resume_step: int, time: str) -> dict[str, Any]:
    """The line for a launch whose launch.json has this body."""
    return {
        "v": 1,
        "launch": launch_body["launch"],
        "timeline": launch_body["timeline"],
        "resume_step": resume_step,
        "settings": {name: launch_body[name] for name in SETTINGS},
        "time": time,
    }


def note_launch(path: Path, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Append a launch durably; returns what is damaged in the log, which hinders no launch."""
    with contextlib.closing(ChainedLog(path)) as log:
        log.append(body)
        return log.damage


def read_launches(path: Path) -> tuple[list[Launched], tuple[str, ...]]:
    """The launches in the order written, and what is damaged; a missing file has none."""
    reading = read_log(path)
    launches, damage = [], list(reading.damage)
    for number, body in enumerate(reading.entries):
        try:
            require_version(body, path)
            launches.append(_parse(body))
        except (KeyError, TypeError, ValueError) as problem:
            damage.append(f"entry {number} is no launch: {problem!r}")
    return launches, tuple(damage)


class Makers:
    """Which launch made each committed step (from 1) of a timeline's history (default: the current's).

    A later launch makes again what it begins before; `of` takes a few comparisons.
    """

    def __init__(
        self, launches: Iterable[Launched], timelines: Timelines, timeline: int | None = None
    ) -> None:
        self._upto = dict(ancestry(timelines, timeline))
        self._launches: list[Launched] = []  # by the step they began at, each up to the next one
        for one in launches:
            if one.timeline not in self._upto:
                continue
            while self._launches and self._launches[-1].resume_step >= one.resume_step:
                self._launches.pop()
            self._launches.append(one)
        self._begun = [one.resume_step for one in self._launches]

    def of(self, step: int) -> Launched | None:
        """The launch that made a step; None where the log does not know it."""
        place = bisect_left(self._begun, step) - 1
        if place < 0:
            return None
        upto = self._upto[self._launches[place].timeline]
        return self._launches[place] if upto is None or step <= upto else None


def _parse(body: Mapping[str, Any]) -> Launched:
    timeline, step, settings = body["timeline"], body["resume_step"], body["settings"]
    if type(timeline) is not int or type(step) is not int:
        raise ValueError("timeline or resume_step is no number")
    return Launched(str(body["launch"]), timeline, step, dict(settings), str(body["time"]))
