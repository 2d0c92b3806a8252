"""The end of --once: whether anything is left to do, and the last line."""

from __future__ import annotations

import math

from stoker.corpus.records.index import OPEN
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.moves import decide_moves
from stoker.kit.daemon import DaemonContext
from stoker.store.errors import StorageError, Transient, UnavailableError
from stokerd.sharding.status import summary
from stokerd.sharding.view import ShardView


class Drain:
    """Looks at the loop's view."""

    def __init__(self, context: DaemonContext, view: ShardView) -> None:
        self._context, self._view = context, view

    def is_over(self) -> bool:
        """Whether nothing is going on, and nothing would be done however long one waited."""
        view = self._view
        hot, warm = view.hot, view.warm
        seen = hot.known and hot.measured and hot.tidy
        if warm.configured:
            seen = seen and warm.known and warm.measured and warm.tidy
            seen = seen and (view.residence.tried or not view.space.short)
        idle = {job.subject for job in view.crew.jobs if job.abandoned}
        if not seen or view.shelf.behind or view.crew.busy.keys() - {hot.lister, warm.lister} - idle:
            return False
        if view.failures.holds_back:  # for a while: it says so, and gives up by itself
            return False
        situation = view.situation()
        nothing = not decide(situation, math.inf) and not decide_moves(situation, view.shelves(), math.inf)
        return nothing and view.tokenizer.task() is None

    def stopped(self) -> int:
        """The exit code after a stop; --once was to finish everything, and has not."""
        if not self._context.once:
            return 0
        self._context.log.info("interrupted", message="not all is built; start it again and it goes on")
        return Transient.exit_code

    def farewell(self) -> int:
        """Say what was done and what was not; returns the exit code."""
        left = []
        view = self._view
        beyond, sources = view.beyond(), view.book.sources
        meant = (one.path for one in sources.in_state(*OPEN) if view.files.takes(one.path))
        open_ = sorted(path for path in meant if path not in beyond)
        if view.tokenizer.training is not None:
            left.append("the tokenizer waits until enough of the listing is here")
        if open_:
            left.append(f"{len(open_)} not finished: {', '.join(open_[:3])}")
        if view.warm.configured and (behind := sources.sums.unsynced):
            left.append(f"{behind} not copied to warm")
        if stuck := [job.name for job in view.crew.jobs if job.abandoned]:
            raise UnavailableError(f"{', '.join(stuck)}: hangs in the kernel; look at the mount")
        if view.space.short:
            raise StorageError(f"{view.space.short}; free some space, then start again")
        self._context.log.info("drained", message=summary(sources.sums, left))
        return 0
