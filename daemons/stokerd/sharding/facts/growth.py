"""Builds that need more room on hot than they claimed: each is answered, and waits where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import EXCEEDS_DISK, Source
from stoker.corpus.schedule.growth import AGAIN, decide_growth
from stoker.corpus.staging.finding import Finding
from stoker.corpus.staging.size_estimate import FILES_BYTES
from stoker.kit.workers.pool import Job
from stokerd.sharding.effects import Effect, Event, Send, event

if TYPE_CHECKING:
    from stokerd.sharding.state import BuildWork, State


def begin(state: State, source: Source) -> int:
    """The bytes of data that a build may write from its start."""
    return state.space.grant(state, source) - FILES_BYTES


def answer(state: State) -> Iterator[Effect]:
    """Answer the builds that ask for room; what is granted is in the ledger first."""
    for job in state.builds():
        work, source = job.facts, state.sources[job.subject]
        if work.asks is None:
            continue
        growth = state.space.growth(state, source, written=work.asks[0], needed=work.asks[1])
        if growth is None:
            continue
        granted = decide_growth(growth)
        if granted is None:
            work.asks, work.refused = None, growth
            yield Send(job.subject, {"room": 0})
        else:
            state.space.granted[source.path] = granted
            state.space.refresh(state)
            work.asks = None  # not before: where the ledger cannot be written it is answered later
            yield Send(job.subject, {"room": granted - FILES_BYTES})


def refused(state: State, job: Job[BuildWork], source: Source) -> Finding | Event:
    """What the end of a build that got no room means: a finding against its file, or that it waits."""
    growth = job.facts.refused
    assert growth is not None  # it ended because of that
    is_hopeless = growth.is_hopeless
    state.space.set_back(state, source, None if is_hopeless else int(growth.needed * AGAIN))
    figures = {"needed_bytes": growth.needed, "expected_bytes": growth.expected}
    if is_hopeless:
        detail = (
            f"its shard set took {format_bytes(growth.needed)} and was not done, where "
            f"{format_bytes(growth.expected)} were expected; hot has {format_bytes(growth.most)} for it"
        )
        figures["room_bytes"] = growth.most
        return Finding(EXCEEDS_DISK, detail, job.facts.row_group, figures=figures)
    reason = (
        f"its shard set needs more than the {format_bytes(growth.limit)} it may have on hot now; "
        "it begins again once there is more room"
    )
    about = {**figures, "room_bytes": growth.limit}
    return event("build_set_back", "warning", path=source.path, reason=reason, **about)
