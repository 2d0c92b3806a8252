"""Room on the disks for what waits for it: what leaves, what is given back, what is said when nothing can."""

from __future__ import annotations

import time
from itertools import islice

from stoker.corpus.schedule.decide import buildable, stageable
from stoker.corpus.schedule.moves import unsynced
from stokerd.sharding.source_actions import SourceActions
from stokerd.sharding.view import ShardView


class RoomDesk:
    """Looks at the loop's view, and acts through it."""

    def __init__(self, view: ShardView, actions: SourceActions) -> None:
        self._view, self._actions = view, actions

    def make_room(self) -> None:
        """Have sets leave hot for what waits for room, and say so where none can."""
        view, now = self._view, time.monotonic()
        situation, residence, space = view.situation(), view.residence, view.space
        cold, sources = residence.wants.cold_bytes, view.book.sources
        staging = [sources[path] for path in stageable(situation, now)[:1]]
        building = [sources[path] for path in buildable(situation, now)[:1]]
        set_back = dict(islice(view.outcomes.growth.needs.items(), 1))
        needed = cold + sum(space.stage_needs(source) for source in staging) + sum(set_back.values())
        residence.make_room(needed, view.doing("hydrate"))
        stuck = not view.crew.busy.keys() - {view.hot.lister, view.warm.lister}
        first = building or [source for source in staging if source.path in situation.wanted]
        if stuck and (staging or building) and view.hot.measured and view.hot.partial:
            view.hot.discard_partial()
        elif stuck and first and view.hot.measured:
            self._actions.unstage(first[0], view.tokenizer.contents)
        cold, stuck = cold if residence.wants.blocked else 0, stuck and not residence.consumed
        space.tell_waiting(staging=staging, building=building, set_back=set_back, cold=cold, stuck=stuck)
        space.tell_warm_full(list(islice(unsynced(sources), 1)))
        residence.tell_too_small()
