"""Builds that need more room on hot than they claimed: each is answered, and waits where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import EXCEEDS_DISK, Source
from stoker.corpus.schedule.growth import Raise, TooLarge, decide_growth
from stoker.corpus.staging.finding import Finding
from stoker.corpus.staging.size_estimate import FILES_BYTES
from stoker.kit.workers.pool import Job
from stokerd.sharding.effects import Effect, Event, Send, event
from stokerd.sharding.facts.space import Held, again_bytes

if TYPE_CHECKING:
    from stokerd.sharding.state import BuildWork, State


def begin(state: State, source: Source) -> int:
    """The bytes of data that a build may write from its start; one that was set back is given more."""
    if (held := state.space.held.pop(source.path, None)) is not None:
        state.space.granted[source.path] = again_bytes(held)
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
        decision = decide_growth(growth)
        if isinstance(decision, Raise):
            state.space.granted[source.path] = decision.to
            state.space.refresh(state)
            work.asks = None  # not before: where the ledger cannot be written it is answered later
            yield Send(job.subject, {"room": decision.to - FILES_BYTES})
        else:
            work.asks, work.refusal = None, (growth, decision)
            yield Send(job.subject, {"room": 0})


def refused(state: State, job: Job[BuildWork], source: Source) -> Finding | Event:
    """What the end of a build that got no room means: a finding against its file, or that it waits."""
    assert job.facts.refusal is not None  # it ended because of that
    growth, decision = job.facts.refusal
    state.space.forget_build(source)
    figures = {"needed_bytes": growth.needed, "expected_bytes": growth.expected}
    if isinstance(decision, TooLarge):
        detail = (
            f"its shard set took {format_bytes(growth.needed)} and was not done, where "
            f"{format_bytes(growth.expected)} were expected; hot has {format_bytes(growth.most)} for it"
        )
        figures["room_bytes"] = growth.most
        return Finding(EXCEEDS_DISK, detail, job.facts.row_group, figures=figures)
    state.space.held[source.path] = Held(source.sha256, growth.needed)
    return event(
        "build_set_back",
        "warning",
        path=source.path,
        reason=f"its shard set needs more than the {format_bytes(growth.limit)} it may have on hot now; "
        "it begins again once there is more room",
        **figures,
        room_bytes=growth.limit,
    )


def held_back(state: State) -> list[str]:
    """The paths that are not to be built yet; one at a time begins again, where there is room."""
    waiting: list[str] = []
    is_free, held = True, state.space.held
    for path, one in list(held.items()):
        source = state.sources.get(path)
        if source is None or source.sha256 != one.sha256 or source.state != "building":
            del held[path]
        elif path not in state.pool and is_free and _fits(state, source, again_bytes(one)):
            is_free = False
        else:
            waiting.append(path)
    return waiting


def _fits(state: State, source: Source, needed: int) -> bool:
    growth = state.space.growth(state, source, written=0, needed=needed)
    return growth is not None and growth.needed <= growth.limit
