"""A longer horizon of a run with wsd: it starts where the decay of the old one began.

There the learning rate is still at its peak; any step later would go on from a decayed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.plan.timelines import Timelines
from stoker.supervise.run.launch_record import Launched, Makers


def milestones(launches: Iterable[Launched]) -> frozenset[int]:
    """Returns the steps at which the decays of these launches begin: their checkpoints are kept."""
    return frozenset(step for step in map(_decay_begins, launches) if step)


def longer_from(
    launches: Sequence[Launched], timelines: Timelines, *, step: int, steps: int, begins: int | None
) -> int | None:
    """Returns the step that a run at `step` must go back to; None: it goes on from where it is.

    `begins` is the last step before the decay from now on, None without one; `steps` is the horizon. A run
    goes back where the last launch had a shorter horizon and the newest steps were made in its decay.
    """
    if begins is None or not launches or steps <= int(launches[-1].settings.get("steps") or steps):
        return None
    start = decay_began(Makers(launches, timelines), step)
    return start if 0 < start < min(step, begins) else None


def decay_began(makers: Makers, step: int) -> int:
    """Returns the last step before the decay that made `step`; `step` itself where none did."""
    while (maker := makers.of(step)) is not None:
        begins = _decay_begins(maker)
        if begins is None or step <= begins:
            break
        step = max(begins, maker.resume_step)
    return step


def _decay_begins(launch: Launched) -> int | None:
    step = (launch.settings.get("schedule") or {}).get("decay_begins")
    return step if type(step) is int else None
