"""The stage-shard loop's quarantine: its budget, requests about it, and periodic rechecks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stoker.corpus.quarantine.directory import Kept, drops, due, findings, read_quarantine, refusal
from stoker.corpus.records.sources import Source
from stoker.kit.daemon import DaemonContext
from stoker.shards.audit.recheck import DROP, RELEASE, REVALIDATE, fetch_again
from stoker.store.record import utc_now
from stoker.store.requests import Request
from stokerd.sharding.effects import Answer, DropFinding, Effect, MarkFinding, StartOver, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

RECHECK = "/revalidate"  # the job's subject; never a source's path
READ_EVERY_S = 60.0
GONE = "its file is not there any more, and no good copy of it was kept"
VERBS = (RELEASE, REVALIDATE, DROP)


@dataclass
class Round:
    """A request to recheck everything: `todo` names the remaining entries, the other fields count results."""

    todo: set[str]
    released: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)


class QuarantineState:
    """`kept` is everything in quarantine, newest first; `looking_at` the path under recheck."""

    def __init__(self, context: DaemonContext) -> None:
        self._directory = context.layout.quarantine
        self._read_due, self._stamp = 0.0, 0
        self.kept: tuple[Kept, ...] = ()
        self.rounds: dict[str, Round] = {}
        self.looking_at: str | None = None

    def read_soon(self) -> None:
        self._read_due = 0.0

    def read(self) -> None:
        """Reads the directory if its time stamp changed, else every READ_EVERY_S for inner changes."""
        now, stamp = time.monotonic(), 0
        if self._directory.exists():  # created with the first entry
            stamp = self._directory.stat().st_mtime_ns
        if stamp != self._stamp or now >= self._read_due:
            self._stamp, self._read_due = stamp, now + READ_EVERY_S
            self.kept = read_quarantine(self._directory)

    def named(self, request: Request) -> Kept | None:
        """Returns the quarantine entry that a request names."""
        return next((kept for kept in self.kept if kept.name == request.args.get("name")), None)


def act(state: State) -> Iterator[Effect]:
    """Answers requests, restarts sources without a finding, and enforces the budget."""
    quarantine, requests = state.records.quarantine, state.records.asked(*VERBS)
    if any(quarantine.named(request) is None for request in requests):
        quarantine.read_soon()  # the named entry may be new although the time stamp is unchanged
    quarantine.read()
    yield from _restart_without_finding(state)
    for request in requests:
        if request.verb == DROP:
            yield from _drop(state, request)
        else:
            answer = _release(state, request) if request.verb == RELEASE else _round(state, request)
            if answer is not None:
                yield Answer(request, answer)
    quarantine.read()  # without the entries just dropped
    budget = state.pipeline.quarantine
    busy = {*state.doing("quarantine"), *filter(None, (quarantine.looking_at,))}
    limits = {"keep_files": budget.keep_files, "keep_bytes": budget.keep_bytes}
    for kept, why in list(drops(quarantine.kept, state.sources, **limits, busy=busy)):
        yield DropFinding(kept, why)


def _quarantined(state: State) -> list[Source]:
    """Returns the sources that can be rechecked: imported tokens and former contents have no file."""
    return [source for source in state.sources.in_state("quarantined") if source.has_file]


def _restart_without_finding(state: State) -> Iterator[Effect]:
    """Starts over sources whose finding an operator removed: the loop judges them again."""
    quarantine = state.records.quarantine
    for _ in range(2):  # the time stamp may hide an entry that was made within its resolution
        known = findings(quarantine.kept)
        lost = [one for one in _quarantined(state) if (one.path, one.sha256) not in known]
        if not lost:
            return
        quarantine.read_soon()
        quarantine.read()
    for source in lost:
        yield StartOver(source, "what was found against it is gone from quarantine", "warning")


def mark_released(kept: Kept, why: str) -> Iterator[Effect]:
    """Records that a finding's source was released for another try."""
    yield event("source_released_from_quarantine", path=kept.path, folder=kept.name, why=why)
    yield MarkFinding(kept.name, {"released": {"time": utc_now(), "why": why}})


# Requests


def _release(state: State, request: Request) -> Mapping[str, Any] | None:
    """Returns the answer to a release request; None while it needs a recheck first."""
    kept = state.records.quarantine.named(request)
    if kept is None:
        return {"refused": f"nothing in quarantine is called {request.args.get('name')}"}
    if kept.released is not None:
        return {"released": kept.path, "why": kept.released.get("why"), "already": True}
    source = state.sources.get(kept.path)
    if (no := refusal(kept, source)) is not None:
        return {"refused": no}
    if (request.condition or {}).get("sha256", kept.sha256) != kept.sha256:
        return {"refused": f"{kept.path} is not the file that was meant: its sha256 is {kept.sha256[:16]}"}
    if source is not None and source.never_came:
        return fetch_again(state.context.layout, kept.path)
    return None


def _round(state: State, request: Request) -> Mapping[str, Any] | None:
    """Returns the answer to a request to recheck everything, None until all is rechecked."""
    quarantine = state.records.quarantine
    if request.id not in quarantine.rounds:
        waiting = due(quarantine.kept, _quarantined(state), now=time.time(), every=0.0)
        quarantine.rounds[request.id] = Round({kept.name for kept in waiting})
    one = quarantine.rounds[request.id]
    one.todo &= {kept.name for kept in quarantine.kept if kept.released is None}
    if one.todo:
        return None
    del quarantine.rounds[request.id]
    return {"released": one.released, "bad": one.ends["bad"], "unreadable": one.ends["unreadable"]}


def _drop(state: State, request: Request) -> Iterator[Effect]:
    quarantine = state.records.quarantine
    name, kept = str(request.args.get("name")), quarantine.named(request)
    if kept is None:
        yield Answer(request, {"dropped": name, "bytes": 0})
    elif kept.kind == "checkpoint":
        yield Answer(request, {"refused": "quarantined checkpoints are the train supervisor's to drop"})
    elif quarantine.looking_at != kept.path:
        reason_too = request.args.get("reason_too") is True
        if kept.things or reason_too:
            yield DropFinding(kept, f"asked for by {request.by}", reason_too)
        size = kept.bytes or int((kept.dropped or {}).get("bytes", 0))
        yield Answer(request, {"dropped": name, "bytes": size})


# Recheck


def next_look(state: State) -> tuple[Kept, bool] | None:
    """Returns the entry to recheck now, and whether to release it without reading its file."""
    quarantine = state.records.quarantine
    if RECHECK in state.pool or not state.hot.is_known:
        return None
    for request in state.records.asked(RELEASE):
        if (kept := quarantine.named(request)) is not None and _release(state, request) is None:
            return kept, request.args.get("force") is True
    asked = set[str]().union(*(one.todo for one in quarantine.rounds.values()))
    every = state.pipeline.quarantine.revalidate
    for kept in due(quarantine.kept, _quarantined(state), now=time.time(), every=0.0 if asked else every):
        if kept.name in asked or (not asked and state.retries.allows(f"{RECHECK} {kept.name}")):
            return kept, False
    return None
