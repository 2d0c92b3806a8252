"""A recorded history as phases to train again, and whether their bits can come out the same.

The history is trained again without its faults: a kill and a resume change nothing in a deterministic run. A
new phase begins where a launch had other settings or a rollback changed the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.plan.timelines import Timelines, ancestry
from stoker.store.errors import ConfigError, DataError
from stoker.supervise.run.launch_record import Launched, Makers
from stoker.supervise.run.numerics_record import OF_A_PHASE, differences, is_known


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
    """Returns the phases of a timeline's history up to step `to`; one of them ends at `stop`.

    Raises DataError for a step that no recorded launch made.
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


def insist_on_equal_bits(
    parts: Sequence[Phase], sealed: str = "", made_with: Mapping[str, Any] | None = None
) -> None:
    """Raises ConfigError, with what can be done, unless all phases have the same numerics, known and exact.

    A phase of the run begins with its own micro-batch and recomputation. `sealed` names the checkpoint to
    compare with, which was `made_with` these.
    """
    first, phase = parts[0].settings.get("numerics") or {}, parts[0].settings.get("phase", "")
    if not is_known(first):
        raise ConfigError(
            f"no replay can repeat steps 1 to {parts[0].last}: their numerics are not on record. The Stoker "
            "that made them did not record any, or its supervisor ended before it received them"
        )
    for part in parts:
        now, last = part.settings.get("numerics") or {}, part.first - 1
        if (name := part.settings.get("phase", "")) != phase:
            phase, first = name, {**first, **{key: now[key] for key in OF_A_PHASE if key in now}}
        changes = differences(first, now) if is_known(now) else ["to unknown ones"]
        if changes:
            raise ConfigError(
                f"no replay can go past step {last}, where the run's numerics changed "
                f"({'; '.join(changes)}); replay it up to there: --to {last}"
            )
        if now["device"] != "cpu" and not part.settings["deterministic"]:
            raise ConfigError(
                f"no replay can repeat steps {part.first} to {part.last}: they were trained on "
                f"{now['device']} with train.deterministic: false"
            )
    made = [part for part in parts if part.first <= int(sealed.rpartition("-")[2] or 0)]
    if made_with is not None and (changes := differences(made[-1].settings["numerics"], made_with)):
        raise ConfigError(
            f"no replay can repeat {sealed}: it was made with other numerics than the log of launches has "
            f"({'; '.join(changes)}), because the supervisor ended before it received the change; name the "
            "step of an older checkpoint with --to"
        )
