"""What a launch needs, before and all along: data past the gate, held-out windows, a plan, sets on hot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.corpus.records.pin import DatasetPin
from stoker.kit.context import DaemonContext
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.growth import MISSING
from stoker.plan.log import Passed, Segment
from stoker.plan.positions import Position, Skip
from stoker.shards.format.pinned import not_yet_pinned
from stoker.store.errors import DataError
from stoker.supervise.run.gates import Gate, start_gate
from stoker.supervise.run.plan_settings import gate_wants, growth_policy
from stoker.supervise.run.planner import RETRY_S, Outlook, Planner
from stoker.supervise.run.record import Heldout, Identity
from stokerd.supervision.cycle import Turns
from stokerd.supervision.set_repair import Repairs, SetLost

PROOF_QUIET_S = 300.0  # a worker that read nothing for so long hangs in a mount that does not answer
SETS_AT_ONCE = 8
DOUBTED_SEGMENTS = 2  # what a trainer has open: the entry it reads, and perhaps the one before or behind it
RESTS = 5  # times as long as a look at the plan took, before the next one
HOLD_OUT_RETRY_S = 10.0
SETS = "/sets"  # no checkpoint is called so
ANOTHER = "its manifest's sha256"
PROOF_WORKER = "stoker.shards.format.proof_worker"


class Provisions:
    """The data side of one run."""

    def __init__(self, context: DaemonContext, turns: Turns, planner: Planner) -> None:
        self.events, self.pipeline = context.events, context.pipeline
        self.turns = turns
        self.planner = planner
        self.repairs = Repairs(context, planner)
        self.proving: dict[str, str] = {}  # key -> manifest sha256
        self.needed: dict[str, str] = {}  # the same of what the next launch reads
        self._rest_until = 0.0  # with 50,000 sets a look takes a second
        self.strange: dict[str, str] = {}  # whole sets that are not those the plan names
        self.policy = growth_policy(self.pipeline)
        self._judged: tuple[tuple[int, str], str] | None = None

    def wait_at_gate(self) -> DatasetPin:
        """Wait until a new run may begin; DataError when the data is complete and will never do."""
        wants = gate_wants(self.pipeline)
        while True:
            pin = self.planner.pin()
            other = "" if pin is None else self._other(pin)
            gate = Gate("closed", other) if other else start_gate(self.planner.in_view(pin), wants)
            if gate.state == "open" and pin is not None:
                self.events.record("start_gate_open", message=gate.why)
                return pin
            if gate.state == "hopeless":
                raise DataError(gate.why)
            self.turns.doing = f"waiting for data: {gate.why}"
            self.turns.turn_or_stop()

    def _other(self, pin: DatasetPin) -> str:
        """Why this pin is not that of the configured dataset; the answer stays until the pin is another."""
        seen = pin.version, pin.build_id
        if self._judged is None or self._judged[0] != seen:
            self._judged = seen, not_yet_pinned(self.pipeline, pin)
        return self._judged[1]

    def heldout_sets(self, pin: DatasetPin, seq_len: int) -> dict[str, str]:
        """The sets whose val streams are held out, key to manifest sha256; none where nothing is."""
        wanted = self.pipeline.train.evaluate.tokens
        return self.planner.sets_with_heldout(pin, wanted + seq_len) if wanted else {}

    def hold_out(self, sets: Mapping[str, str], identity: Identity, target: str) -> Heldout | None:
        """Copy the held-out windows, once for the whole run; None when there is no held-out text."""
        if not sets:
            return None
        task = {
            "shards_root": str(self.pipeline.hot_layout.shards(identity.dataset)),
            "sets": [list(pair) for pair in sets.items()],
            "seq_len": identity.seq_len,
            "vocab_size": identity.vocab_size,
            "tokens": self.pipeline.train.evaluate.tokens,
            "target": target,
        }
        while True:
            self.turns.doing = "copying held-out windows"
            if trouble := self._not_proven(sets):
                why = "; ".join(trouble)
            else:
                ended = self.turns.errand(
                    "hold out", "/heldout", "stoker.plan.heldout_worker", task, quiet_s=PROOF_QUIET_S
                )
                if (told := ended.result) is not None:
                    held = Heldout(told["sha256"], told["windows"], told["dtype"], told["tokens"])
                    return held if held.windows else None
                why = ended.reason()
            self.events.record("heldout_failed", "warning", reason=why)
            self.turns.pause(HOLD_OUT_RETRY_S, "held-out windows could not be copied")

    def keep_planned(self, pin: DatasetPin, outlook: Outlook) -> None:
        """Prove the sets that the next entries would name, and append what is due of the proven ones."""
        now = time.monotonic()
        if (ended := self.turns.take(SETS)) is not None:
            self._take_proofs(ended, now)
        elif now < self._rest_until:
            return
        wanted = self.planner.to_prove(pin, outlook, self.policy, now)
        if SETS not in self.turns.crew:
            wanted = self.planner.unproven(self.needed, now) | wanted
            self.proving = dict(list(wanted.items())[:SETS_AT_ONCE])
            if self.proving:
                task = self._proof_task(self.proving)
                prove = Activity("prove", PROOF_WORKER, PROOF_QUIET_S)
                self.turns.crew.start(prove, SETS, task, None)
        for entry in self.planner.grow(pin, outlook, self.policy, now):
            words: dict[str, Any] = {"entry": entry.n, "kind": type(entry).__name__.lower()}
            if isinstance(entry, Segment):
                words |= {"epoch": entry.epoch, "windows": entry.windows}
            self.events.record("plan_grown", **words)
            if isinstance(entry, Passed) and entry.reason == MISSING:
                self.events.record(
                    "source_passed_over",
                    "warning",
                    path=entry.path,
                    hold_s=self.policy.hold_s,
                    message="the plan waited for it for plan.hold and goes on without it; it joins the plan "
                    "once it is a shard set. `stoker status` says what the other daemons know of it",
                )
        self._rest_until = now + RESTS * (time.monotonic() - now)

    def need(self, position: Position, skips: Sequence[Skip], reach: Position | None) -> None:
        """Take down what training on from here reads of what is planned: it is proven before growth is."""
        self.needed = self.planner.needed(position, skips, upto=reach)

    def lacking(self, pin: DatasetPin) -> str:
        """What a launch would lack of what it needs, in words: nothing when all is on hot and proven.

        Raises SetLost when something never comes back. consumed.json must have named the needs before.
        """
        cold = self.planner.cold(self.needed)
        self.repairs.check_hope(pin, cold, time.monotonic())
        for key, why in self.strange.items():
            if key in self.needed:
                raise SetLost(f"{self._path(key)} is whole, but not the set that the plan names: {why}")
        if cold:
            return f"bringing back {_sets(len(cold))}"
        if not self.planner.trusted(self.needed):
            restored = f"; {_sets(self.repairs.open)} to be restored" if self.repairs.open else ""
            return f"proving shard sets{restored}"
        return ""

    def doubt(self, position: Position, skips: Sequence[Skip]) -> None:
        """The trainer found the data around a position wrong: it is proven before it is read again."""
        self.planner.distrust(self.planner.needed(position, skips, DOUBTED_SEGMENTS))

    def _not_proven(self, sets: Mapping[str, str]) -> list[str]:
        """Have these sets proven now; what is wrong with which, in words."""
        ended = self.turns.errand("prove", SETS, PROOF_WORKER, self._proof_task(sets), quiet_s=PROOF_QUIET_S)
        found = list(self._verdicts(sets, ended))
        for key, path, why in found:
            if not why:
                self.repairs.whole(key)
            elif why.startswith("invalid"):
                self.repairs.report(key, path, why)
        return [f"{path}: {why}" for _, path, why in found if why]

    def _proof_task(self, keys: Iterable[str]) -> dict[str, Any]:
        return {"sets": [{"path": self._path(key), "key": key} for key in keys]}

    def _path(self, key: str) -> str:
        return str(self.pipeline.hot_layout.shard_set(self.pipeline.dataset.name, key))

    def _verdicts(self, wanted: Mapping[str, str], ended: WorkerExit) -> Iterator[tuple[str, str, str]]:
        """Each set's key, its path, and what is wrong with it: nothing when it is proven."""
        if ended.result is None:
            yield from ((key, self._path(key), f"not proven: {ended.reason()}") for key in wanted)
            return
        for (key, digest), proof in zip(wanted.items(), ended.result["proofs"], strict=True):
            why = "" if proof["verdict"] == "proven" else f"{proof['verdict']}: {proof['reason']}"
            if not why and proof["manifest_sha256"] != digest:
                why = f"{ANOTHER} is {proof['manifest_sha256']}, recorded is {digest}"
            yield key, self._path(key), why

    def _take_proofs(self, ended: WorkerExit, now: float) -> None:
        for key, path, why in self._verdicts(self.proving, ended):
            if not why:
                self.planner.proven(key, self.proving[key])
                self.repairs.whole(key)
                self.strange.pop(key, None)
            elif why.startswith(ANOTHER) and key in self.needed:
                self.strange[key] = why
            elif key in self.needed or why.startswith("invalid"):
                self.planner.not_proven(key, now, self.repairs.report(key, path, why))
            else:
                self.planner.not_proven(key, now, RETRY_S)
                self.events.record(
                    "shard_set_not_proven",
                    "warning",
                    path=path,
                    reason=why,
                    message="it stays out of the plan and is tried again in a minute",
                )


def _sets(count: int) -> str:
    return f"{count} shard set" + ("s" if count != 1 else "")
