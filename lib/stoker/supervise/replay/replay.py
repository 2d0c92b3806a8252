"""A run's recorded history as phases that can be trained again, one after the other, without its faults.

A kill and a resume change nothing in a run that is deterministic, so the phases know neither. A new phase
begins where a launch brought other settings, or where a rollback took the run to another timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.plan.timelines import Timelines, ancestry
from stoker.store.errors import DataError
from stoker.supervise.run.launch_log import Launched, Makers


@dataclass(frozen=True)
class Phase:
    """Steps `first` to `last` (from 1, both included), made on one timeline with the same settings."""

    first: int
    last: int
    timeline: int
    settings: Mapping[str, Any]


def phases(
    launches: Sequence[Launched], timelines: Timelines, *, timeline: int, to: int, stop: int | None = None
) -> list[Phase]:
    """The phases of a timeline's history up to step `to`; one of them ends at `stop`.

    Raises DataError for a step that no launch on record made.
    """
    forks = [upto for _, upto in ancestry(timelines, timeline) if upto is not None]
    begins = {1, *(one.resume_step + 1 for one in launches), *(upto + 1 for upto in forks), (stop or 0) + 1}
    makers, made = Makers(launches, timelines, timeline), list[Phase]()
    for first in sorted(step for step in begins if 1 <= step <= to):
        launch = makers.of(first)
        if launch is None:
            raise DataError(
                f"the log of launches knows none that made step {first} of timeline {timeline}: it was "
                "damaged, or the run began before there was one"
            )
        phase = Phase(first, to, launch.timeline, launch.settings)
        is_same = made and (made[-1].timeline, made[-1].settings) == (phase.timeline, phase.settings)
        if is_same and first - 1 != stop:
            continue
        if made:
            made[-1] = replace(made[-1], last=first - 1)
        made.append(phase)
    return made


def phase_of(parts: Sequence[Phase], step: int) -> Phase | None:
    """The phase that makes a step; None behind the last."""
    return next((part for part in parts if part.first <= step <= part.last), None)


def forbids(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What of two `trainer.json` (compute and versions) rules out equal bits, half a sentence each.

    What one of the two does not say is not compared.
    """
    found = []
    for part, name in _DECISIVE:
        told, now = (side.get(part, {}).get(name) for side in (recorded, here))
        if None not in (told, now) and told != now:
            found.append(f"{name} is {told} in the recorded run and {now} here")
    return found


_DECISIVE = (
    ("versions", "torch"),
    ("compute", "device"),
    ("compute", "precision"),
    ("compute", "threads"),
    ("compute", "micro_batch"),
)
