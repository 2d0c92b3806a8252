"""The supervisor's dealings with checkpoints: have them proven, act on the verdict, convict what is bad."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.select import History
from stoker.kit.context import DaemonContext
from stoker.kit.worker import WorkerExit
from stoker.supervise.checkpoints import Checkpoint, Checkpoints
from stoker.supervise.meters import Meters
from stokerd.provisions import PROOF_QUIET_S
from stokerd.turns import Turns

PROOF_WORKER = "stoker.checkpoints.proof_worker"
RETRY_S = 10.0


class CheckpointDesk:
    """Proofs by worker, one at a time; `newest` is the newest checkpoint proven in this daemon's life."""

    def __init__(self, context: DaemonContext, turns: Turns, meters: Meters) -> None:
        self.events = context.events
        self.turns = turns
        self.meters = meters
        self.shelf = Checkpoints(context.pipeline)
        self._proving: Path | None = None
        self._proven_at: float | None = None

    @property
    def newest(self) -> Checkpoint | None:
        return self.shelf.newest

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest one was proven."""
        return None if self._proven_at is None else time.monotonic() - self._proven_at

    def newest_proven(self, history: History) -> Checkpoint | None:
        """Prove the newest of a history, the one before where it is bad; None where there is none.

        One that cannot be read is waited for: an older one would silently undo what was trained since.
        Call it only while nobody can be sealing.
        """
        for name in self.shelf.sweep():
            self.events.record("leftover_removed", path=f"checkpoints/{name}")
        while (found := self.shelf.newest_candidate(history)) is not None:
            self.turns.doing = f"proving checkpoint {found.path.name}"
            ended = self.turns.errand(
                "prove", found.path.name, PROOF_WORKER, _task(found.path), quiet_s=PROOF_QUIET_S
            )
            verdict = self._judge(found.path, ended)
            if verdict == "proven":
                return self.newest
            if verdict == "unreadable":
                self.turns.pause(RETRY_S, f"checkpoint {found.path.name} cannot be read now; trying")
        return None

    def prove_new(self, history: History) -> bool:
        """Have whatever was sealed since proven in the background; True when a verdict came in."""
        if self._proving is not None:
            ended = self.turns.take(self._proving.name)
            if ended is None:
                return False
            path, self._proving = self._proving, None
            self._judge(path, ended)
            return True
        found = self.shelf.unproven(history, time.monotonic())
        if found is not None:
            self._proving = found.path
            self.turns.crew.start(
                "prove", found.path.name, PROOF_WORKER, _task(found.path), quiet_s=PROOF_QUIET_S
            )
        return False

    def all_judged(self, history: History) -> bool:
        """Have the next one proven; whether none is left that could be proven now."""
        self.prove_new(history)
        return self._proving is None and self.shelf.unproven(history, time.monotonic()) is None

    def drop_work(self) -> None:
        """Forget the proof under way: its worker was stopped."""
        self._proving = None

    def prune(self) -> None:
        """Remove what retention no longer keeps."""
        for step in self.shelf.prune():
            self.events.record("checkpoint_pruned", step=step)

    def _judge(self, path: Path, ended: WorkerExit) -> str:
        """Act on a proof: take it in, convict, or leave it for later; returns the verdict."""
        no_proof = {"verdict": "unreadable", "reason": f"no proof: {ended.reason()}"}
        proof: Mapping[str, Any] = ended.result["proofs"][0] if ended.result else no_proof
        if proof["verdict"] == "proven":
            self._take_in(path, proof["body"])
        elif proof["verdict"] == "invalid":
            self._convict(path, proof["reason"])
        else:
            self.shelf.unreadable(path, time.monotonic())
            self.events.record(
                "checkpoint_unreadable",
                "warning",
                path=f"checkpoints/{path.name}",
                reason=proof["reason"],
                message="neither trusted nor thrown away, and tried again; look at the disk",
            )
        return str(proof["verdict"])

    def _take_in(self, path: Path, body: Mapping[str, Any]) -> None:
        before = self.newest
        checkpoint = self.shelf.proven(path, body)
        if before is None or checkpoint.step > before.step:
            self._proven_at = time.monotonic()
            self.events.record("checkpoint_proven", path=f"checkpoints/{path.name}", step=checkpoint.step)

    def _convict(self, path: Path, reason: str) -> None:
        moved = self.shelf.convict(path, reason)
        self.meters.quarantined.inc()
        self.events.record(
            "checkpoint_quarantined",
            "warning",
            path=f"checkpoints/{path.name}",
            reason=reason,
            moved_to=str(moved.place),
            dropped=list(moved.dropped),
            message="it is not whole and is never resumed from; the one before it is used",
        )


def _task(path: Path) -> dict[str, Any]:
    return {"checkpoints": [str(path)], "deep": True}
