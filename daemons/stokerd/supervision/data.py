"""What a launch needs of its data: past the start gate, held-out windows copied, a plan, its sets on hot.

A plan may be trained on in parts: after a rollback, what is planned from there on may be more than hot holds.
Then a launch goes as far as hot allows, seals and ends; what it read leaves hot, what comes next is brought
back, and the next launch goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import DatasetPin
from stoker.kit.backoff import Backoff
from stoker.kit.events import Events
from stoker.plan.growth import AHEAD_BATCHES, MISSING
from stoker.plan.log import Passed, Segment
from stoker.plan.positions import Position, Skip
from stoker.shards.format.identity import set_key
from stoker.shards.format.pinned import not_yet_pinned
from stoker.store.layout import STAGE_SHARD
from stoker.store.requests import file_request, read_outcome
from stoker.supervise.actions import CopyHeldout, ProveSets
from stoker.supervise.rollback.decide import by_key, why_lost
from stoker.supervise.run.data_wait import waiting_words
from stoker.supervise.run.gates import Gate, start_gate
from stoker.supervise.run.plan_settings import gate_wants, growth_policy
from stoker.supervise.run.planner import RETRY_S, Outlook, Planner

SETS_AT_ONCE = 8
DOUBTED_SEGMENTS = 2  # what a trainer has open: the entry it reads, and perhaps the one before or behind it
RESTS = 5  # times as long as a look at the plan took, before the next one
FIRST_S, MOST_S = 5.0, 300.0  # between two proofs of a set that is not whole
HOPE_S = 5.0  # between two looks at what could become of cold sets: a hash a record
GONE_S = 600.0  # without any record of its source: a loop that starts again writes its records again
STALL_S = 30.0  # so long no set came back: then there is no room for all of them


@dataclass
class _Repair:
    """One damaged set: the request that waits for an answer, and the pauses between its proofs."""

    request: str | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_S, MOST_S))


class DataReadiness:
    """The data side of one run. `gate` is the first that was closed at the last look."""

    def __init__(self, pipeline: Pipeline, events: Events, planner: Planner) -> None:
        self.events, self.pipeline, self.planner = events, pipeline, planner
        self.needed: dict[str, str] = {}  # what the next launch reads: key -> manifest sha256
        self.gate: Gate | None = None
        self._policy, self._wants = growth_policy(pipeline), gate_wants(pipeline)
        self._cold, self._cold_since = -1, 0.0  # how many needed sets are not on hot
        self._rest_until = 0.0  # with 50,000 sets a look takes a second
        self._repairs: dict[str, _Repair] = {}  # damaged sets
        self._lost = ""  # why a set that the plan names never comes back
        self._hope_at = 0.0
        self._gone_since: dict[str, float] = {}  # sets without any record of a source

    # Gates

    def start(self, pin: DatasetPin | None) -> Gate:
        """Whether there is enough data for a new run to begin."""
        gate = start_gate(self.planner.in_view(pin), self._wants)
        if gate.state != "closed" and pin is not None and (other := not_yet_pinned(self.pipeline, pin)):
            gate = Gate("closed", other)
        return gate if gate.state != "closed" else Gate("closed", f"waiting for data: {gate.why}")

    def launchable(self, pin: DatasetPin | None, *, is_planned: bool = True) -> Iterator[Gate]:
        """The gates before needed sets are read; `is_planned`: the plan has a batch left, or has ended.

        consumed.json must have named the needs before.
        """
        if not is_planned:
            yield Gate("closed", waiting_words(self.planner.why))
        if pin is None:
            yield Gate("closed", "waiting for the dataset's pin")
            return
        cold = self.planner.cold(self.needed)
        self._check_hope(pin, cold, time.monotonic())
        if self._lost:
            yield Gate("hopeless", self._lost)
        if cold:
            yield Gate("closed", f"bringing back {_sets(len(cold))}")
        if not self.planner.trusted(self.needed):
            restored = f"; {_sets(len(self._repairs))} to be restored" if self._repairs else ""
            yield Gate("closed", f"proving shard sets{restored}")

    def _check_hope(self, pin: DatasetPin, cold: Sequence[str], now: float) -> None:
        """Find sets that can never come back to hot: neither a warm copy nor a source is there."""
        if not cold or now < self._hope_at:
            return
        self._hope_at = now + HOPE_S
        sources = by_key(self.planner.sources().values(), lambda sha256: set_key(sha256, pin.build_id))
        for key in cold:
            why = why_lost(key, sources)
            gone_s = now - self._gone_since.setdefault(key, now)
            if key in sources:
                del self._gone_since[key]
            if why is not None and (key in sources or gone_s >= GONE_S):
                self._lost = (
                    f"shard set {key[:16]}, which the plan names, is neither on hot nor on warm, and {why}. "
                    "Put the source file back, then start again; or give its tokens up for good with "
                    f"`stoker skip-set FILE {key[:16]}`"
                )

    # Needs

    def need_heldout(self, pin: DatasetPin) -> CopyHeldout | None:
        """Need the sets whose val streams are held out; None where nothing is held out."""
        train = self.pipeline.train
        wanted = train.evaluate.tokens
        self.needed = self.planner.sets_with_heldout(pin, wanted + train.seq_len) if wanted else {}
        return CopyHeldout(dict(self.needed), pin.tokenizer.vocab_size) if self.needed else None

    def need(self, position: Position, skips: Sequence[Skip], reach: Position | None) -> Position | None:
        """Need what a launch from here reads of what is planned; returns where it is to stop.

        None: it may read all. `reach` is what the last look returned. Before sets are missed for long, all
        of them are waited for.
        """
        planner, now = self.planner, time.monotonic()
        cold = len(planner.cold(planner.needed(position, skips)))
        if cold != self._cold:
            self._cold, self._cold_since = cold, now
        still_s, in_parts = now - self._cold_since, reach is not None
        reach = None
        if cold and (in_parts or still_s >= STALL_S):
            batches = AHEAD_BATCHES if still_s < 2 * STALL_S else 1  # not even a few batches fit
            reach = planner.reach(position, skips, batches * self.pipeline.train.global_batch)
            if not in_parts and reach is not None:
                advice = "hot does not hold all that is planned from here; it is trained on in parts"
                self.events.record("plan_in_parts", "warning", cold_sets=cold, message=advice)
        self.needed = planner.needed(position, skips, upto=reach)
        return reach

    def to_prove(self, wanted: Mapping[str, str] | None = None) -> ProveSets | None:
        """The next proof: of what is needed first, then of what is wanted for the plan."""
        unproven = self.planner.unproven(self.needed, time.monotonic()) | dict(wanted or {})
        return ProveSets(dict(list(unproven.items())[:SETS_AT_ONCE])) if unproven else None

    def grow(self, pin: DatasetPin, outlook: Outlook) -> ProveSets | None:
        """Append to the plan what is due of proven sets; returns the proof that the next entries need.

        It rests after a look that found much to read.
        """
        now = time.monotonic()
        if now < self._rest_until:
            return None
        proof = self.to_prove(self.planner.to_prove(pin, outlook, self._policy, now))
        for entry in self.planner.grow(pin, outlook, self._policy, now):
            words: dict[str, Any] = {"entry": entry.n, "kind": type(entry).__name__.lower()}
            if isinstance(entry, Segment):
                words |= {"epoch": entry.epoch, "windows": entry.windows}
            self.events.record("plan_grown", **words)
            if isinstance(entry, Passed) and entry.reason == MISSING:
                self.events.record(
                    "source_passed_over",
                    "warning",
                    path=entry.path,
                    hold_s=self._policy.hold_s,
                    message="the plan waited for it for plan.hold and goes on without it; it joins the plan "
                    "once it is a shard set. `stoker status` says what the other daemons know of it",
                )
        self._rest_until = now + RESTS * (time.monotonic() - now)
        return proof

    # What proofs say

    def whole(self, key: str, manifest_sha256: str) -> bool:
        """Take in a proof that succeeded; True where the set was damaged before."""
        self._rest_until = 0.0
        self.planner.proven(key, manifest_sha256)
        if self._repairs.pop(key, None) is None:
            return False
        self.events.record("shard_set_restored", key=key)
        return True

    def another(self, key: str, why: str) -> None:
        """Take in that a whole set is not the one that was recorded."""
        if key in self.needed:
            self._lost = f"{self.path(key)} is whole, but not the set that the plan names: {why}"
        else:
            self._leave_out(key, why)

    def not_whole(self, key: str, why: str) -> None:
        """Take in that a set is damaged, or could not be read; what is needed is asked for again."""
        if key not in self.needed and not why.startswith("invalid"):
            self._leave_out(key, why)
            return
        self._rest_until = 0.0
        repair, layout = self._repairs.setdefault(key, _Repair()), self.pipeline.layout
        self.planner.not_proven(key, time.monotonic(), repair.backoff.next())
        if repair.request is None or read_outcome(layout, repair.request) is not None:
            repair.request = file_request(layout, STAGE_SHARD, "prove_set", {"key": key, "reason": why})
            message = "the stage-shard loop is asked to restore it; what needs it waits"
            words = {"path": self.path(key), "key": key, "reason": why, "request": repair.request}
            self.events.record("shard_set_damaged", "error", **words, message=message)

    def _leave_out(self, key: str, why: str) -> None:
        self._rest_until = 0.0
        self.planner.not_proven(key, time.monotonic(), RETRY_S)
        message = "it stays out of the plan and is tried again in a minute"
        words = {"path": self.path(key), "reason": why, "message": message}
        self.events.record("shard_set_not_proven", "warning", **words)

    def doubt(self, position: Position, skips: Sequence[Skip]) -> None:
        """The trainer found the data around a position wrong: it is proven before it is read again."""
        self.planner.distrust(self.planner.needed(position, skips, DOUBTED_SEGMENTS))

    def path(self, key: str) -> str:
        """Where a set lies on hot."""
        return str(self.pipeline.hot_layout.shard_set(self.pipeline.dataset.name, key))


def _sets(count: int) -> str:
    return f"{count} shard set" + ("s" if count != 1 else "")
