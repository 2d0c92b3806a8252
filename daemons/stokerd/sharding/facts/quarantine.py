"""The quarantine in the stage-shard loop: its budget, what people ask of it, what is looked at again."""

from __future__ import annotations

import calendar
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stoker.corpus.quarantine.directory import Kept, QuarantineDir
from stoker.corpus.quarantine.rules import Drop, drops, due, homeless, refusal
from stoker.corpus.records.sources import Source
from stoker.kit.daemon import DaemonContext
from stoker.shards.audit.recheck import DROP, RELEASE, REVALIDATE, began_anew, fetch_again
from stoker.store.names import record_name, utc_now
from stoker.store.requests import Request
from stokerd.sharding.effects import Answer, Effect, MarkFinding, OpenFinding, RemoveFinding, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

DROPPING, RECHECK = "/quarantine-drop", "/revalidate"  # subjects; never a source's path
READ_EVERY_S, THINK_EVERY_S = 5.0, 5.0
GONE = "its file is not there any more, and no good copy of it was kept"
VERBS = (RELEASE, REVALIDATE, DROP)


@dataclass
class Round:
    """A request to look at everything that was not looked at since; what came of it."""

    asked_at: float
    done: set[str] = field(default_factory=set)
    released: list[str] = field(default_factory=list)
    bad: int = 0
    unreadable: int = 0


class QuarantineState:
    """`kept` is everything in quarantine, newest first; `looking_at` the path that is being looked at."""

    def __init__(self, context: DaemonContext) -> None:
        self._directory = context.layout.quarantine
        self._reader = QuarantineDir(self._directory)
        self._read_due, self._stamp = 0.0, -1
        self.kept: tuple[Kept, ...] = ()
        self.rounds: dict[str, Round] = {}
        self.looking_at: str | None = None
        self.think_due = 0.0
        self.removed: dict[str, int] = {}  # the bytes of what went with its reason, by name

    def read_soon(self) -> None:
        """Look through the directory at the next occasion."""
        self._read_due = 0.0

    def read(self) -> None:
        """Look through the directory where something changed; a folder more or less shows in its time."""
        now = time.monotonic()
        try:
            stamp = self._directory.stat().st_mtime_ns
        except FileNotFoundError:  # it is made again with the next thing in it
            stamp = 0
        if stamp != self._stamp or now >= self._read_due:
            self._stamp, self._read_due = stamp, now + READ_EVERY_S
            self.kept = self._reader.read()

    def named(self, request: Request) -> Kept | None:
        """What a request names."""
        return next((kept for kept in self.kept if kept.name == request.args.get("name")), None)


def act(state: State) -> Iterator[Effect]:
    """Answer requests, record what became of things, and keep the budget."""
    quarantine, requests = state.records.quarantine, state.records.asked(*VERBS)
    if requests:
        quarantine.read_soon()  # what one names may have come, or been marked, without a newer time stamp
    quarantine.read()
    yield from _record_releases(state)
    yield from _write_lost_findings(state)
    for request in requests:
        yield from _consider(state, request)
    quarantine.read()  # with what was asked to go
    yield from _keep_budget(state)


def quarantined(state: State) -> dict[str, Source]:
    """What can be looked at again; an imported source has no file: it is imported again, or not."""
    sources = state.sources.in_state("quarantined")
    return {source.path: source for source in sources if not source.imported}


# Requests


def _consider(state: State, request: Request) -> Iterator[Effect]:
    match request.verb:
        case verb if verb == RELEASE:
            answer = _release(state, request)
        case verb if verb == DROP:
            answer = yield from _drop(state, request)
        case _:
            answer = _round(state, request)
    if answer is not None:
        yield Answer(request, answer)


def _release(state: State, request: Request) -> Mapping[str, Any] | None:
    """The answer to a wish for release where no look is needed for it; None until there was one."""
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
    """The answer to a wish to look at everything again, once that is done."""
    rounds = state.records.quarantine.rounds
    if request.id not in rounds:
        rounds[request.id] = Round(_filed_at(request.id))
        return None
    one = rounds[request.id]
    if RECHECK in state.pool or not state.hot.is_known or left(state, one):
        return None
    del rounds[request.id]
    return {"released": one.released, "bad": one.bad, "unreadable": one.unreadable}


def left(state: State, one: Round) -> list[Kept]:
    """What a round has still to look at."""
    asked_at = one.asked_at + 1.0
    found = due(
        state.records.quarantine.kept, quarantined(state), now=time.time(), every=None, asked_at=asked_at
    )
    return [kept for kept in found if kept.name not in one.done]


def _drop(state: State, request: Request) -> Generator[Effect, None, Mapping[str, Any] | None]:
    quarantine = state.records.quarantine
    name, kept = str(request.args.get("name")), quarantine.named(request)
    if kept is None:
        return {"dropped": name, "bytes": quarantine.removed.pop(name, 0)}
    if kept.kind == "checkpoint":
        return {"refused": "quarantined checkpoints are the train supervisor's to drop"}
    with_reason = request.args.get("reason_too") is True
    if kept.dropping is None and not kept.things and not with_reason:
        return {"dropped": name, "bytes": int((kept.dropped or {}).get("bytes", 0))}
    if quarantine.looking_at != kept.path and (kept.dropping or {}).get("reason_too") != with_reason:
        why = f"asked for by {request.by}"
        yield MarkFinding(name, {"dropping": {"why": why, "bytes": kept.bytes, "reason_too": with_reason}})
    return None


# Records of what became of things


def _record_releases(state: State) -> Iterator[Effect]:
    """An event for each release, whoever made it; also of those that a crash left without one."""
    for kept in state.records.quarantine.kept:
        why = began_anew(state.sources.get(kept.path), kept)
        if why is None and (kept.released is None or kept.released.get("told")):
            continue
        released = kept.released or {"time": utc_now(), "why": why}
        about = {"path": kept.path, "folder": kept.name, "why": str(released.get("why"))}
        yield event("source_released_from_quarantine", **about)
        yield MarkFinding(kept.name, {"released": {**released, "told": True}})


def _write_lost_findings(state: State) -> Iterator[Effect]:
    """Write the findings again that somebody took away, or their sources would never be looked at again."""
    quarantine = state.records.quarantine
    if not homeless(quarantined(state), quarantine.kept):
        return
    quarantine.read_soon()
    quarantine.read()  # a folder's time stamp may hide what was made in the same instant
    for source in homeless(quarantined(state), quarantine.kept):
        detail = "what was kept of it, and why, is gone from quarantine"
        finding = {"reason": source.reason, "column": source.column, "detail": detail}
        body = {"path": source.path, "sha256": source.sha256, "unseen": True, **finding}
        yield OpenFinding(record_name(source.dataset, source.path), body)


# The budget


def _keep_budget(state: State) -> Iterator[Effect]:
    quarantine, budget = state.records.quarantine, state.pipeline.quarantine
    busy = {*state.doing("quarantine"), *filter(None, (quarantine.looking_at,))}
    chosen = list(
        drops(
            quarantine.kept,
            state.sources,
            keep_files=budget.keep_files,
            keep_bytes=budget.keep_bytes,
            busy=busy,
        )
    )
    for drop in chosen:  # all at once: with the first of them gone, an older one would fit again
        if drop.kept.dropping is None:
            yield MarkFinding(drop.kept.name, {"dropping": {"why": drop.why, "bytes": drop.kept.bytes}})
    for drop in chosen:
        if not drop.kept.things:
            yield from _finish(state, drop)
        elif DROPPING not in state.pool and state.retries.allows(DROPPING):
            yield from state.start("drop", drop.kept.name)


def _finish(state: State, drop: Drop) -> Iterator[Effect]:
    """It is gone: first the event, then the mark that there was one."""
    kept, intent = drop.kept, drop.kept.dropping or {}
    size = int(intent.get("bytes", 0))
    about = {"kind": kept.kind, "path": kept.path, "folder": kept.name}
    yield event("quarantine_dropped", **about, bytes=size, why=drop.why)
    state.progress.dropped[kept.kind] += 1
    if intent.get("reason_too"):
        state.records.quarantine.removed[kept.name] = size
        yield RemoveFinding(kept.name)
    else:
        dropped = {"time": utc_now(), "why": drop.why, "bytes": size}
        yield MarkFinding(kept.name, {"dropping": None, "dropped": dropped})


# Another look


def next_look(state: State) -> tuple[Kept, bool] | None:
    """What to look at again now, and whether to take its word without a look."""
    quarantine = state.records.quarantine
    if RECHECK in state.pool or not state.hot.is_known:
        return None
    for request in state.records.asked(RELEASE):
        if (kept := quarantine.named(request)) is not None and _release(state, request) is None:
            return kept, request.args.get("force") is True
    now = time.monotonic()
    if not quarantine.rounds and now < quarantine.think_due:
        return None
    quarantine.think_due = now + THINK_EVERY_S
    for one in quarantine.rounds.values():
        if waiting := left(state, one):
            return waiting[0], False
    every = state.pipeline.quarantine.revalidate
    found = due(quarantine.kept, quarantined(state), now=time.time(), every=every)
    waiting = [kept for kept in found if state.retries.allows(f"{RECHECK} {kept.name}")]
    return (waiting[0], False) if waiting else None


def _filed_at(request_id: str) -> float:
    """When a request was filed, in seconds since 1970, from its id; now where that tells nothing."""
    try:
        return float(calendar.timegm(time.strptime(request_id.partition("-")[0], "%Y%m%dT%H%M%SZ")))
    except ValueError:
        return time.time()
