"""What the stage-shard loop wants of the landing: kept as one record, which the download watchdog reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.corpus.schedule.landing import demand_of
from stoker.corpus.schedule.state import Situation
from stokerd.sharding.effects import Effect, SetDemand, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

LEAST_MISSED = 16  # at once, ahead of the builders as stage.queue_files is


def act(state: State, situation: Situation) -> Iterator[Effect]:
    """Write the demand where it changed."""
    records = state.records
    most_missed = max(LEAST_MISSED, state.pipeline.stage.queue_files)
    before, demand = records.demand, demand_of(situation, records.demandable, most_missed=most_missed)
    if demand == before:
        return
    yield SetDemand(demand)
    missed = [path for path in demand.missed if path not in before.missed]
    for path in missed:
        reason = "its shard set is to be made again, and its file was removed after the last time"
        yield event("source_wanted_again", path=path, reason=reason)


def show(state: State) -> dict[str, Any]:
    """The status' part; a folder's files nothing removes or fetches."""
    records = state.records
    if not records.is_fetched:
        return {}
    here = (path for path in records.demandable if records.receipts[path].usable)
    asked = {"release": len(records.demand.unneeded), "fetch": len(records.demand.missed)}
    return {"landing": {"unneeded_bytes": sum(state.sources[path].size for path in here), "asked": asked}}
