"""The supervisor's dealings with checkpoints: have them proven, act on the verdict, convict what is bad."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.select import History
from stoker.kit.context import DaemonContext
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.supervise.mirror.inventory import Checkpoint, Checkpoints
from stoker.supervise.report.metrics import Meters
from stokerd.supervision.cycle import Turns
from stokerd.supervision.data_readiness import PROOF_QUIET_S
from stokerd.supervision.mirror import MirrorDesk
from stokerd.supervision.mirror_fallback import MirrorFallback
from stokerd.supervision.run_store import RunBook

PROOF_WORKER = "stoker.checkpoints.proof_worker"
RETRY_S = 10.0


class CheckpointDesk:
    """Proofs by worker, one at a time; `newest` is the newest checkpoint proven in this daemon's life."""

    def __init__(self, context: DaemonContext, turns: Turns, meters: Meters, book: RunBook) -> None:
        self.events = context.events
        self.turns = turns
        self.meters = meters
        self.shelf = Checkpoints(context.pipeline)
        self.mirror: MirrorDesk | None = None
        self.fallback: MirrorFallback | None = None
        warm = context.pipeline.warm_layout
        if warm is not None and context.pipeline.train.checkpoint.mirror:
            self.mirror = MirrorDesk(context, turns, meters, shelf=self.shelf, book=book, warm=warm)
            self.fallback = MirrorFallback(self.mirror)
        self._sealed: Checkpoint | None = None
        self.convicted = False  # whether one was, in the last selection
        self._proving: Path | None = None
        self._proven_at: float | None = None

    @property
    def newest(self) -> Checkpoint | None:
        return self.shelf.newest

    @property
    def sealed(self) -> Checkpoint | None:
        """The one that `note_sealed` found, while it is there."""
        return self._sealed if self._sealed is not None and self._sealed.path.exists() else None

    def note_sealed(self, history: History) -> None:
        """Find the newest sealed checkpoint, proven or not, to be shown. Call it while nobody is sealing."""
        self._sealed = self.shelf.sealed(history)

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest one was proven."""
        return None if self._proven_at is None else time.monotonic() - self._proven_at

    def newest_proven(self, history: History) -> Checkpoint | None:
        """Prove the newest of a history, here or from the mirror, the one before where it is bad; or None.

        One that cannot be read is waited for: an older one would silently undo what was trained since.
        Call it only while nobody can be sealing.
        """
        self.shelf.forget_missing()
        self.shelf.kept.clear()
        for name in self.shelf.sweep():
            self.events.record("leftover_removed", path=f"checkpoints/{name}")
        self.convicted = False
        here = self._newest_here(history)
        if self.mirror is None or self.fallback is None:
            return here
        while self.fallback.look(here, history, convicted=self.convicted):
            history = self.mirror.history()  # rollbacks that this disk had lost
            here = self._newest_here(history)
        if (brought := self.fallback.bring_newer(here, history)) is not None:
            self._proven_at = time.monotonic()
        return brought or here

    def _newest_here(self, history: History) -> Checkpoint | None:
        while (found := self.shelf.newest_candidate(history)) is not None:
            verdict = self.prove_now(found.path)
            if verdict == "proven":
                return self.shelf[found.path.name]
            if verdict == "unreadable":
                self.turns.pause(RETRY_S, f"checkpoint {found.path.name} cannot be read now; trying")
        return None

    def prove_now(self, path: Path) -> str:
        """Have one proven and wait for it: `proven`, `invalid` (and then moved away) or `unreadable`."""
        self.turns.doing = f"proving checkpoint {path.name}"
        ended = self.turns.errand("prove", path.name, PROOF_WORKER, _task(path), quiet_s=PROOF_QUIET_S)
        return self._judge(path, ended)

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
            prove = Activity("prove", PROOF_WORKER, PROOF_QUIET_S)
            self.turns.crew.start(prove, found.path.name, _task(found.path), None)
        return False

    def all_judged(self, history: History) -> bool:
        """Have the next one proven; whether none is left that could be proven or mirrored now."""
        self.prove_new(history)
        judged = self._proving is None and self.shelf.unproven(history, time.monotonic()) is None
        return judged and (self.mirror is None or self.mirror.settled())

    def tend(self) -> None:
        """One turn of what goes on beside everything else: the mirror."""
        if self.mirror is not None:
            self.mirror.tend()

    def see_to_heldout(self) -> None:
        """Bring the held-out windows back from the mirror where they are not whole here."""
        if self.fallback is not None:
            self.fallback.see_to_heldout()

    def fetch_step(self, step: int, history: History) -> Path | None:
        """Bring a step's checkpoint back from the mirror, to be rolled back to; None where it has none.

        Raises Transient when the mirror cannot be asked now. Call it while nothing is being trained.
        """
        return None if self.fallback is None else self.fallback.fetch_step(step, history)

    def let_go(self) -> None:
        """Stop and reap whatever reads checkpoints: they are about to be moved."""
        if self.mirror is not None:
            self.mirror.cancel()
        self.turns.drop_work()
        self.drop_work()

    def drop_work(self) -> None:
        """Forget the proof under way: its worker was stopped."""
        self._proving = None

    def close(self) -> None:
        """End the mirror's worker; what it began is gone on with at the next start."""
        if self.mirror is not None:
            self.mirror.cancel()

    def prune(self) -> None:
        """Remove what retention no longer keeps."""
        for step in self.shelf.prune():
            self.events.record("checkpoint_pruned", step=step)

    def _judge(self, path: Path, ended: WorkerExit) -> str:
        """Act on a proof: take it in, convict, or leave it for later; returns the verdict."""
        no_proof = {"verdict": "unreadable", "reason": f"no proof: {ended.reason()}"}
        proof: Mapping[str, Any] = ended.result["proofs"][0] if ended.result else no_proof
        if proof["verdict"] == "proven":
            self._take_in(path, proof["body"], proof["digest"])
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

    def _take_in(self, path: Path, body: Mapping[str, Any], digest: str) -> None:
        before = self.newest
        checkpoint = self.shelf.proven(path, body, digest)
        if before is None or checkpoint.step > before.step:
            self._proven_at = time.monotonic()
            self.events.record("checkpoint_proven", path=f"checkpoints/{path.name}", step=checkpoint.step)

    def _convict(self, path: Path, reason: str) -> None:
        self.convicted = True
        if self.mirror is not None:
            self.mirror.cancel()
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
