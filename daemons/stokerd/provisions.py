"""What a launch needs, before and all along: data past the gate, held-out windows, a plan ahead."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.corpus.dataset import DatasetPin
from stoker.kit.context import DaemonContext
from stoker.kit.worker import WorkerExit
from stoker.plan.growth import GrowthPolicy, horizon_windows
from stoker.plan.log import Segment
from stoker.plan.positions import Position, linear
from stoker.store.errors import DataError
from stoker.supervise.gates import GateWants, start_gate
from stoker.supervise.planner import Outlook, Planner
from stoker.supervise.record import Heldout, Identity
from stokerd.turns import Turns

PROOF_QUIET_S = 300.0  # a worker that read nothing for so long hangs in a mount that does not answer
SETS_AT_ONCE = 8
RETRY_S = 10.0
SETS = "/sets"  # no checkpoint is called so
PROOF_WORKER = "stoker.shards.proof_worker"


class Provisions:
    """The data side of one run."""

    def __init__(self, context: DaemonContext, turns: Turns, planner: Planner) -> None:
        self.events, self.pipeline = context.events, context.pipeline
        self.turns = turns
        self.planner = planner
        self.proving: dict[str, str] = {}  # key -> manifest sha256
        train, plan = self.pipeline.train, self.pipeline.plan
        self.policy = GrowthPolicy(
            seed=train.seed,
            seq_len=train.seq_len,
            global_batch=train.global_batch,
            segment_tokens=plan.segment_tokens,
            order=plan.order,
            hold_s=plan.hold,
            epochs=plan.epochs,
            first_segment_tokens=train.start_when.tokens,
        )

    def wait_at_gate(self) -> DatasetPin:
        """Wait until a new run may begin; DataError when the data is complete and will never do."""
        train = self.pipeline.train
        wants = GateWants(
            sets=train.start_when.shard_sets,
            train_tokens=train.start_when.tokens,
            heldout_tokens=train.evaluate.tokens if self.pipeline.shard.val_ratio else 0,
            seq_len=train.seq_len,
        )
        while True:
            pin = self.planner.pin()
            gate = start_gate(self.planner.in_view(pin), wants)
            if gate.state == "open" and pin is not None:
                self.events.record("start_gate_open", message=gate.why)
                return pin
            if gate.state == "hopeless":
                raise DataError(gate.why)
            self.turns.doing = f"waiting for data: {gate.why}"
            self.turns.turn_or_stop()

    def hold_out(self, pin: DatasetPin, identity: Identity, target: str) -> Heldout | None:
        """Copy the held-out windows, once for the whole run; None when there is no held-out text."""
        wanted = self.pipeline.train.evaluate.tokens
        sets = self.planner.sets_with_heldout(pin, wanted + identity.seq_len) if wanted else {}
        if not sets:
            return None
        task = {
            "shards_root": str(self.pipeline.hot_layout.shards(identity.dataset)),
            "sets": [list(pair) for pair in sets.items()],
            "seq_len": identity.seq_len,
            "vocab_size": identity.vocab_size,
            "tokens": wanted,
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
            self.turns.pause(RETRY_S, "held-out windows could not be copied")

    def keep_planned(self, pin: DatasetPin, step: int, position: Position) -> None:
        """Prove the sets that the next entries would name, and append what is due of the proven ones."""
        now = time.monotonic()
        if (ended := self.turns.take(SETS)) is not None:
            self._take_proofs(ended, now)
        outlook = self._outlook(step, position)
        if SETS not in self.turns.crew:
            wanted = self.planner.to_prove(pin, outlook, self.policy, now)
            self.proving = dict(list(wanted.items())[:SETS_AT_ONCE])
            if self.proving:
                task = self._proof_task(self.proving)
                self.turns.crew.start("prove", SETS, PROOF_WORKER, task, quiet_s=PROOF_QUIET_S)
        for entry in self.planner.grow(pin, outlook, self.policy, now):
            words: dict[str, Any] = {"entry": entry.n, "kind": type(entry).__name__.lower()}
            if isinstance(entry, Segment):
                words |= {"epoch": entry.epoch, "windows": entry.windows}
            self.events.record("plan_grown", **words)

    def damaged_sets(self, position: Position) -> list[str]:
        """Prove the sets that are read around a position; what is wrong with which, in words."""
        segments = [
            entry for entry in self.planner.plan.entries[position.entry :] if isinstance(entry, Segment)
        ]
        return self._not_proven(dict(pair for segment in segments[:2] for pair in segment.sets))

    def _not_proven(self, sets: Mapping[str, str]) -> list[str]:
        """Have these sets proven now; what is wrong with which, in words."""
        ended = self.turns.errand("prove", SETS, PROOF_WORKER, self._proof_task(sets), quiet_s=PROOF_QUIET_S)
        return [f"{path}: {why}" for _, path, why in self._verdicts(sets, ended) if why]

    def _outlook(self, step: int, position: Position) -> Outlook:
        consumed = linear(self.planner.plan, position)
        train = self.pipeline.train
        return Outlook(
            consumed,
            horizon_windows(
                consumed=consumed, step=step, steps=train.horizon, global_batch=train.global_batch
            ),
        )

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
                why = f"its manifest's sha256 is {proof['manifest_sha256']}, recorded is {digest}"
            yield key, self._path(key), why

    def _take_proofs(self, ended: WorkerExit, now: float) -> None:
        for key, path, why in self._verdicts(self.proving, ended):
            if not why:
                self.planner.proven(key, self.proving[key])
                continue
            self.planner.not_proven(key, now)
            self.events.record(
                "shard_set_not_proven",
                "warning",
                path=path,
                reason=why,
                message="it stays out of the plan and is tried again in a minute",
            )
