"""runs.jsonl: how each launch ended, and where the time went until then."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stoker.store.log import ChainedLog, read_entries
from stoker.supervise.run.goodput import STEPS


@dataclass(frozen=True)
class LaunchEnd:
    """A launch; `seconds` by bucket are those since the launch before was settled, so none is in no line.

    `last_step` is the newest that was told or proven, `proven_step` what the next launch goes on from.
    `begin` and `end` are UTC. `exit_class` and `end` are None where the supervisor died before the launch.
    """

    launch: str
    timeline: int
    resume_step: int
    begin: str
    last_step: int = 0
    proven_step: int | None = None
    end: str | None = None
    exit_class: str | None = None
    detail: str = "the supervisor ended before the launch did"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """The share of the time in steps that a proven checkpoint holds."""
        return self.seconds.get(STEPS, 0.0) / self.wall_s if self.wall_s else None

    def body(self) -> dict[str, Any]:
        return {"v": 1, **asdict(self)}


def parse_end(body: Mapping[str, Any]) -> LaunchEnd:
    """Returns the launch of a line, or of the books of a launch that is not settled yet."""
    return LaunchEnd(**{name: body[name] for name in LaunchEnd.__dataclass_fields__ if name in body})


def note_end(path: Path, one: LaunchEnd) -> tuple[str, ...]:
    """Appends a launch durably, unless it is the last line already; returns the log's damage."""
    with contextlib.closing(ChainedLog(path)) as log:
        if (log.last or {}).get("launch") != one.launch:
            log.append(one.body())
        return log.damage


def read_ends(path: Path) -> tuple[list[LaunchEnd], tuple[str, ...]]:
    """Returns the launches in the order of their ends, and the log's damage; none for a missing file."""
    return read_entries(path, parse_end, "launch")
