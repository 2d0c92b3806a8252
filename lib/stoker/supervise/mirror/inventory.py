"""The run's checkpoints as the supervisor knows them: what is proven, what waits for a proof, what may go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.checkpoints.quarantine import Quarantined, quarantine_checkpoint
from stoker.checkpoints.retention import Kept, RetentionPolicy, prune, remove_checkpoint, sweep_leftovers
from stoker.checkpoints.select import History, candidates, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.plan.log import Plan, read_plan
from stoker.plan.positions import Position

RETRY_S = 10.0  # before a checkpoint that could not be read is tried again


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, proven in this life of the supervisor or `sealed`; `body` is its checkpoint.json."""

    path: Path
    step: int
    body: Mapping[str, Any]
    digest: str = ""  # checkpoint.json's sha256

    @property
    def position(self) -> Position:
        return Position.parse(self.body["position"])

    def plan(self) -> Plan:
        """The copy of the plan it carries."""
        return read_plan(self.path / "plan.jsonl")


BEGINNING = Checkpoint(Path(), 0, {"step": 0, "position": [0, 0], "tokens": 0})  # before the first one


class Checkpoints:
    """The sealed checkpoints and what is known of each. The trainer adds, the supervisor removes."""

    def __init__(self, pipeline: Pipeline) -> None:
        run = pipeline.layout.run(pipeline.train.run)
        self._directory = run.checkpoints
        self._quarantine = pipeline.layout.quarantine
        self._budget = pipeline.quarantine
        keep = pipeline.train.checkpoint
        self.policy = RetentionPolicy(keep.keep_last, keep.keep_every, frozenset(keep.milestones))
        self.kept: set[str] = set()  # names that retention leaves alone until the next launch
        self.proven_at: float | None = None  # when the newest one was proven
        self._proven: dict[str, Checkpoint] = {}
        self._retry_at: dict[str, float] = {}
        self._sealed: Checkpoint | None = None

    @property
    def newest(self) -> Checkpoint | None:
        """The newest one proven so far."""
        return max(self._proven.values(), key=lambda one: one.step, default=None)

    @property
    def sealed(self) -> Checkpoint | None:
        """The newest one that `note_sealed` found, while it is there."""
        return self._sealed if self._sealed is not None and self._sealed.path.exists() else None

    def get(self, name: str) -> Checkpoint | None:
        """The one with this name, if it is proven."""
        return self._proven.get(name)

    def path(self, name: str) -> Path:
        return self._directory / name

    def note_sealed(self, history: History) -> None:
        """Find the newest sealed one, proven or not, to be shown; only while nothing seals."""
        found = candidates(find_checkpoints(self._directory), history)
        sealed = (Checkpoint(one.path, one.step, one.body.raw) for one in found if one.body)
        self._sealed = next(sealed, None)

    def before_selection(self) -> list[str]:
        """Forget what is gone, and remove what interrupted seals left; only while nothing seals."""
        self.forget_missing()
        self.kept.clear()
        return sweep_leftovers(self._directory)

    def newest_candidate(self, history: History) -> str:
        """The name of the newest sealed one of a history, "" without any."""
        return next((one.path.name for one in candidates(find_checkpoints(self._directory), history)), "")

    def unproven(self, history: History, now: float) -> str:
        """The name of the newest sealed one without a verdict that may be tried now, "" without any."""
        found = (one.path.name for one in candidates(find_checkpoints(self._directory), history))
        new = (name for name in found if name not in self._proven)
        return next((name for name in new if self._retry_at.get(name, now) <= now), "")

    def to_mirror(self) -> list[Mirrored]:
        """The copies of the proven ones."""
        return [Mirrored.of(one.body, one.digest) for one in self._proven.values() if one.path.exists()]

    def forget(self, name: str) -> None:
        """Trust one no longer: it is proven again."""
        self._proven.pop(name, None)

    def forget_missing(self) -> None:
        """Trust nothing that was moved away: another checkpoint may get its name."""
        for name in [name for name, one in self._proven.items() if not one.path.exists()]:
            del self._proven[name]

    def proven(self, name: str, body: Mapping[str, Any], digest: str, now: float) -> bool:
        """Take in a proof that succeeded; True when it is the newest one now."""
        before = self.newest
        checkpoint = Checkpoint(self.path(name), int(body["step"]), body, digest)
        self._proven[name] = checkpoint
        self._retry_at.pop(name, None)
        is_newest = before is None or checkpoint.step > before.step
        if is_newest:
            self.proven_at = now
        return is_newest

    def unreadable(self, name: str, now: float) -> None:
        """Take in that nothing could be found out: it is neither trusted nor rejected, and tried again."""
        self._proven.pop(name, None)
        self._retry_at[name] = now + RETRY_S

    def reject(self, name: str, reason: str) -> Quarantined:
        """Move one that was proven wrong into quarantine, within its budget."""
        self._proven.pop(name, None)
        return quarantine_checkpoint(
            self._quarantine,
            self.path(name),
            reason,
            keep=self._budget.keep_checkpoints,
            keep_bytes=self._budget.keep_bytes,
        )

    def prune(self) -> list[int]:
        """Remove what retention no longer keeps and nothing reads; returns the steps."""
        self.forget_missing()
        kept = [
            Kept(one.step, val_loss=one.body.get("val_loss"), read=one.path.name in self.kept)
            for one in self._proven.values()
        ]
        gone = prune(kept, self.policy)
        unwanted = [one for one in self._proven.values() if one.step in gone]
        removed = [one for one in unwanted if remove_checkpoint(one.path)]
        for one in removed:
            del self._proven[one.path.name]
        return [one.step for one in removed]
