"""The end of --once: whether work is left, and the summary."""

from __future__ import annotations

import math

from stoker.corpus.records.index import OPEN
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.state import Situation
from stoker.store.errors import StorageError, UnavailableError
from stokerd.sharding.activities import tokenizer
from stokerd.sharding.state import State
from stokerd.sharding.status import summary


def is_over(state: State, situation: Situation | None) -> bool:
    """Whether no job runs and none would begin, however long the daemon waited.

    `situation` holds the facts of the last decision.
    """
    if situation is None:
        return False
    for disk in state.disks:
        if not (disk.is_known and disk.is_measured) or disk.litter:
            return False
    if state.warm is not None and "hot" in state.space.short and not state.placement.is_tried(state):
        return False
    listers = {disk.lister for disk in state.disks}
    if any(job.subject not in listers and not job.abandoned for job in state.pool.jobs):
        return False
    if state.records.is_behind or state.pauses.reasons(state):  # a pause ends the daemon by its own limit
        return False
    return not decide(situation, math.inf) and not tokenizer.is_wanted(state)


def end(state: State) -> int:
    """Logs the finished and the unfinished work; returns the exit code."""
    records, left = state.records, []
    beyond = records.pinning.beyond
    paths = (one.path for one in state.sources.in_state(*OPEN) if records.files.takes(one.path))
    open_ = sorted(path for path in paths if path not in beyond)
    if records.pinning.training is not None:
        left.append("the tokenizer waits until enough of the listing is here")
    if open_:
        left.append(f"{len(open_)} not finished: {', '.join(open_[:3])}")
    if state.warm is not None and (behind := len(state.sources.unsynced)):
        left.append(f"{behind} not copied to warm")
    if stuck := [job.name for job in state.pool.jobs if job.abandoned]:
        raise UnavailableError(f"{', '.join(stuck)}: hangs in the kernel; look at the mount")
    if (short := state.space.short.get("hot")) is not None:
        raise StorageError(f"{short}; free some space, then start again")
    state.context.log.info("drained", message=summary(state.sources.sums, left))
    return 0
