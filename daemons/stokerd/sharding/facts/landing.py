"""What the stage-shard loop wants of the landing: kept as one record, which the download watchdog reads."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from stoker.corpus.records.demand import Demand, read_demand
from stoker.corpus.schedule.landing import bytes_unneeded, demand_of, may_be_demanded
from stoker.corpus.schedule.state import Situation
from stoker.kit.daemon import DaemonContext
from stokerd.sharding.effects import Effect, SetDemand, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

MOST_UNNEEDED = 1000
LEAST_MISSED = 16  # at once, ahead of the builders as stage.queue_files is
STALE_S = 600.0  # what did not come true in this time gives way to others


class Landing:
    """The demand, and the paths that may have a part in it. A folder's files nothing removes or fetches."""

    def __init__(self, context: DaemonContext) -> None:
        pipeline = context.pipeline
        self._is_fetched = pipeline.dataset.source.kind != "folder"
        self._most_missed = max(LEAST_MISSED, pipeline.stage.queue_files)
        self.demand = read_demand(context.layout, pipeline.dataset.name)
        self._changed: set[str] = set()
        self._open: set[str] = set()
        self._since: dict[str, float] = {}  # when a path came into the demand
        self.asked = {"release": 0, "fetch": 0}  # since the start

    def note(self, paths: Iterable[str]) -> None:
        """The source records or receipts of these paths changed."""
        if self._is_fetched:
            self._changed.update(paths)

    def act(self, state: State, situation: Situation) -> Iterator[Effect]:
        """Write the demand where it changed."""
        if not (self._changed or self._open or self.demand != Demand()):
            return
        now, receipts = time.monotonic(), situation.receipts
        for path in self._changed:
            if may_be_demanded(state.sources.get(path), receipts.get(path)):
                self._open.add(path)
            else:
                self._open.discard(path)
            self._since.pop(path, None)
        self._changed.clear()
        stale = {path for path, since in self._since.items() if now - since > STALE_S}
        demand = demand_of(
            situation,
            self._open,
            most_unneeded=MOST_UNNEEDED,
            most_missed=self._most_missed,
            last=stale,
        )
        if demand == self.demand:
            return
        missed = [path for path in demand.missed if path not in self.demand.missed]
        unneeded = demand.unneeded.keys() - self.demand.unneeded.keys()
        yield SetDemand(demand)
        self.asked["fetch"] += len(missed)
        self.asked["release"] += len(unneeded)
        self._since |= dict.fromkeys(demand.missed.keys() - self._since.keys(), now)
        for path in missed:
            reason = "its shard set is to be made again, and its file was removed after the last time"
            yield event("source_wanted_again", path=path, reason=reason)

    def show(self, state: State) -> dict[str, Any]:
        """The status' part."""
        if not self._is_fetched:
            return {}
        waiting = bytes_unneeded(self._open, state.sources, state.records.receipts)
        asked = {"release": len(self.demand.unneeded), "fetch": len(self.demand.missed)}
        return {"landing": {"unneeded_bytes": waiting, "asked": asked}}

    @property
    def due(self) -> float:
        """When something gives way to others, on the monotonic clock."""
        return min((since + STALE_S for since in self._since.values()), default=math.inf)
