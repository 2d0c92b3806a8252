"""The data that a launch needs: an open start gate, held-out windows, a plan, and the plan's sets on hot.

A launch may read only a part of the plan: after a rollback, the sets planned from there on may not fit on hot
together. Then a launch trains up to `reach`, seals and ends; its sets leave hot, the next ones come back, and
the next launch continues.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin
from stoker.kit.events import Events
from stoker.kit.loop import Backoff
from stoker.plan.growth import AHEAD_BATCHES, MISSING, Cut
from stoker.plan.log import Passed, Segment
from stoker.plan.positions import Position, Skip
from stoker.shards.format.identity import set_key
from stoker.shards.format.pinned import not_yet_pinned
from stoker.store.layout import STAGE_SHARD
from stoker.store.requests import file_request, read_outcome
from stoker.supervise.actions import Job
from stoker.supervise.lost_sets import by_key, why_lost
from stoker.supervise.run.gates import Gate, RequiredData, growth_policy, start_gate
from stoker.supervise.run.planner import RETRY_S, Planner
from stoker.supervise.run.progress import waiting_words

SETS_AT_ONCE = 8
RESTS = 5  # a pause before the next `grow`, as a multiple of the time the last took
DOUBTED_SEGMENTS = 2  # a trainer has the entry it reads open, and perhaps the one before or after
FIRST_S, MOST_S = 5.0, 300.0  # between two proofs of a damaged set
HOPE_S = 5.0  # between two searches for lost sets: a search hashes every source record
GONE_S = 600.0  # without a source record: a restarted stage-shard loop first writes its records again
STALL_S = 30.0  # without a set brought back: hot has no room for all of them


@dataclass
class _Repair:
    """A damaged set: the request to the stage-shard loop to restore it, the pauses between its proofs."""

    request: str | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_S, MOST_S))


class DataReadiness:
    """Decides which shard sets a run needs, proves them, extends the plan and asks for repairs."""

    def __init__(self, pipeline: Pipeline, events: Events, planner: Planner, wants: RequiredData) -> None:
        self.events, self.pipeline, self.planner = events, pipeline, planner
        self.needed: dict[str, str] = {}  # by the next launch: key -> sha256 of the manifest
        self.gate: Gate | None = None  # the first closed gate at the last look
        self._policy, self._wants = growth_policy(pipeline), wants
        self._cold, self._cold_since = -1, 0.0  # needed sets that are not on hot
        self._rest_until = 0.0  # with 50,000 sets a `grow` takes a second
        self._repairs: dict[str, _Repair] = {}  # damaged sets
        self._lost = ""  # why a set of the plan can never come back
        self._hope_at = 0.0
        self._gone_since: dict[str, float] = {}  # sets without any record of a source

    # Gates

    def start(self, pin: DatasetPin | None) -> Gate:
        """Returns the start gate: open once a new run has enough data to begin."""
        gate = start_gate(self.planner.in_view(pin), self._wants)
        if gate.state != "closed" and pin is not None and (other := not_yet_pinned(self.pipeline, pin)):
            gate = Gate("closed", other)
        return gate if gate.state != "closed" else Gate("closed", f"waiting for data: {gate.why}")

    def launchable(self, pin: DatasetPin | None, *, is_planned: bool = True) -> Iterator[Gate]:
        """Yields the gates that keep a launch from reading its sets; write the needs to consumed.json before.

        `is_planned`: the plan has a batch left, or has ended.
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
        """Finds a set that can never come back to hot: it has neither a warm copy nor a source."""
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
                    f"`stoker data skip-set FILE {key[:16]}`"
                )

    # Needs

    def need_heldout(self, pin: DatasetPin, seq_len: int, phase: str = "") -> Job | None:
        """Makes the sets with val streams the needed ones; returns the job that copies their windows."""
        wanted = self.pipeline.train.evaluate.tokens
        self.needed = self.planner.sets_with_heldout(pin, wanted + seq_len) if wanted else {}
        subject = dict(self.needed), pin.tokenizer.vocab_size, seq_len, phase
        return Job("heldout", subject) if self.needed else None

    def need(
        self, position: Position, skips: Sequence[Skip], reach: Position | None, global_batch: int
    ) -> Position | None:
        """Makes the sets that a launch from `position` reads the needed ones; returns where it stops.

        None: the launch may read the whole plan. `reach` is the result of the call before. A launch stops
        early only when no set has come back for STALL_S; until then it waits for all of them.
        """
        planner, now = self.planner, time.monotonic()
        cold = len(planner.cold(planner.needed(position, skips)))
        if cold != self._cold:
            self._cold, self._cold_since = cold, now
        still_s, in_parts = now - self._cold_since, reach is not None
        reach = None
        if cold and (in_parts or still_s >= STALL_S):
            batches = AHEAD_BATCHES if still_s < 2 * STALL_S else 1  # not even a few batches fit
            reach = planner.reach(position, skips, batches * global_batch)
            if not in_parts and reach is not None:
                advice = "hot does not hold all that is planned from here; it is trained on in parts"
                self.events.record("plan_in_parts", cold_sets=cold, message=advice)
        self.needed = planner.needed(position, skips, upto=reach)
        return reach

    def to_prove(self, wanted: Mapping[str, str] | None = None) -> Job | None:
        """Returns the next proof: of needed sets first, then of the sets wanted for the plan."""
        unproven = self.planner.unproven(self.needed, time.monotonic()) | dict(wanted or {})
        return Job("sets", dict(list(unproven.items())[:SETS_AT_ONCE])) if unproven else None

    def grow(self, pin: DatasetPin, target: int, seq_len: int, cuts: tuple[Cut, ...] = ()) -> Job | None:
        """Appends the due entries of proven sets to the plan; returns the proof that the next ones need.

        They have windows of `seq_len`, from each of the `cuts` on of its own. Does nothing for RESTS times as
        long as the call before took, unless a proof has ended since.
        """
        now = time.monotonic()
        if now < self._rest_until:
            return None
        policy = replace(self._policy, seq_len=seq_len, cuts=cuts)
        for entry in self.planner.grow(pin, target, policy, now):
            words: dict[str, Any] = {"entry": entry.n, "kind": type(entry).__name__.lower()}
            if isinstance(entry, Segment):
                words |= {"epoch": entry.epoch, "windows": entry.windows}
            self.events.record("plan_grown", **words)
            if isinstance(entry, Passed) and entry.reason == MISSING:
                self.events.record("source_passed_over", path=entry.path, hold_s=self._policy.hold_s)
        proof = self.to_prove(self.planner.to_prove(now))
        self._rest_until = now + RESTS * (time.monotonic() - now)
        return proof

    # Proofs

    def whole(self, key: str, manifest_sha256: str) -> bool:
        """Takes in that a set is proven; returns True where the set was damaged before."""
        self._rest_until = 0.0
        self.planner.proven(key, manifest_sha256)
        if self._repairs.pop(key, None) is None:
            return False
        self.events.record("shard_set_restored", key=key)
        return True

    def another(self, key: str, why: str) -> None:
        """Takes in that a set is whole, but has another manifest than the recorded one."""
        if key in self.needed:
            self._lost = f"{self.path(key)} is whole, but not the set that the plan names: {why}"
        else:
            self._leave_out(key, why)

    def not_whole(self, key: str, why: str) -> None:
        """Takes in that a set is not whole; asks the stage-shard loop to restore a needed or damaged one."""
        if key not in self.needed and not why.startswith("invalid"):
            self._leave_out(key, why)
            return
        repair, layout = self._repairs.setdefault(key, _Repair()), self.pipeline.layout
        self._rest_until = 0.0
        self.planner.not_proven(key, time.monotonic(), repair.backoff.next())
        if repair.request is None or read_outcome(layout, repair.request) is not None:
            repair.request = file_request(layout, STAGE_SHARD, "prove_set", {"key": key, "reason": why})
            words = {"path": self.path(key), "key": key, "reason": why, "request": repair.request}
            self.events.record("shard_set_damaged", **words)

    def _leave_out(self, key: str, why: str) -> None:
        self._rest_until = 0.0
        self.planner.not_proven(key, time.monotonic(), RETRY_S)
        self.events.record("shard_set_not_proven", path=self.path(key), reason=why)

    def doubt(self, position: Position, skips: Sequence[Skip]) -> None:
        """Has the sets around a position proven again: the trainer found their data wrong."""
        self.planner.distrust(self.planner.needed(position, skips, DOUBTED_SEGMENTS))

    def path(self, key: str) -> str:
        """Returns the directory of a set on hot."""
        return str(self.pipeline.hot_layout.shard_set(self.pipeline.dataset.name, key))


def _sets(count: int) -> str:
    return f"{count} shard set" + ("s" if count != 1 else "")
