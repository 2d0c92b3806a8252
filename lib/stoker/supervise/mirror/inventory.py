"""The run's checkpoints as the supervisor knows them: what is proven, what waits for a proof, what may go."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import BODY, read_body
from stoker.checkpoints.mirror.layout import Local
from stoker.checkpoints.quarantine import Quarantined, quarantine_checkpoint
from stoker.checkpoints.retention import Kept, RetentionPolicy, prune, remove_checkpoint, sweep_leftovers
from stoker.checkpoints.select import Found, History, candidates, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.plan.log import Plan, read_plan
from stoker.plan.positions import Position
from stoker.store.errors import DataError

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


class Checkpoints:
    """The directory of sealed checkpoints and what is known of each. The trainer adds, we remove."""

    def __init__(self, pipeline: Pipeline) -> None:
        run = pipeline.layout.run(pipeline.train.run)
        self._directory = run.checkpoints
        self._quarantine = pipeline.layout.quarantine
        self._budget = pipeline.quarantine
        keep = pipeline.train.checkpoint
        self.policy = RetentionPolicy(keep.keep_last, keep.keep_every, frozenset(keep.milestones))
        self.kept: set[str] = set()  # names that retention leaves alone until the next launch
        self._proven: dict[str, Checkpoint] = {}
        self._retry_at: dict[str, float] = {}

    @property
    def newest(self) -> Checkpoint | None:
        """The newest one proven so far."""
        return max(self._proven.values(), key=lambda one: one.step, default=None)

    def __getitem__(self, name: str) -> Checkpoint:
        """The one with this name, which is proven."""
        return self._proven[name]

    def sweep(self) -> list[str]:
        """Remove what interrupted seals and removals left; only while nobody can be sealing."""
        return sweep_leftovers(self._directory)

    def newest_candidate(self, history: Sequence[tuple[int, int | None]]) -> Found | None:
        """The newest sealed one of this history; before a launch it is proven again, whatever was known."""
        return next(iter(candidates(find_checkpoints(self._directory), history)), None)

    def sealed(self, history: History) -> Checkpoint | None:
        """The newest sealed one of this history whose checkpoint.json can be read; nothing is proven."""
        for found in candidates(find_checkpoints(self._directory), history):
            with contextlib.suppress(OSError, DataError):  # a proof will tell
                body = read_body((found.path / BODY).read_bytes())
                return Checkpoint(found.path, found.step, body.raw)
        return None

    def unproven(self, history: History, now: float) -> Found | None:
        """The newest sealed one that nobody has looked at yet and that may be tried now."""
        found = candidates(find_checkpoints(self._directory), history)
        return next(
            (
                one
                for one in found
                if one.path.name not in self._proven and self._retry_at.get(one.path.name, now) <= now
            ),
            None,
        )

    def local(self) -> list[Local]:
        """The proven ones, as the mirror wants to know them."""
        return [
            Local(
                one.path.name,
                int(one.body["timeline"]),
                one.step,
                one.digest,
                one.body.get("val_loss"),
                sum(int(file["size"]) for file in one.body["files"].values()),
            )
            for one in self._proven.values()
            if one.digest and one.path.exists()
        ]

    def forget(self, name: str) -> None:
        """Trust one no longer: it is proven again."""
        self._proven.pop(name, None)

    def forget_missing(self) -> None:
        """Trust nothing that was moved away: its name may be another's soon."""
        for name in [name for name, one in self._proven.items() if not one.path.exists()]:
            del self._proven[name]

    def proven(self, path: Path, body: Mapping[str, Any], digest: str) -> Checkpoint:
        """Take in a proof that succeeded."""
        checkpoint = Checkpoint(path, int(body["step"]), body, digest)
        self._proven[path.name] = checkpoint
        self._retry_at.pop(path.name, None)
        return checkpoint

    def unreadable(self, path: Path, now: float) -> None:
        """Take in that nothing could be found out: it is neither trusted nor convicted, and tried again."""
        self._proven.pop(path.name, None)
        self._retry_at[path.name] = now + RETRY_S

    def convict(self, path: Path, reason: str) -> Quarantined:
        """Move one that was proven wrong into quarantine, within its budget."""
        self._proven.pop(path.name, None)
        return quarantine_checkpoint(
            self._quarantine,
            path,
            reason,
            keep=self._budget.keep_checkpoints,
            keep_bytes=self._budget.keep_bytes,
        )

    def prune(self) -> list[int]:
        """Remove what retention no longer keeps and nobody reads; returns the steps."""
        self.forget_missing()
        kept = [
            Kept(one.step, True, val_loss=one.body.get("val_loss"), read=one.path.name in self.kept)
            for one in self._proven.values()
        ]
        gone = prune(kept, self.policy)
        unwanted = [one for one in self._proven.values() if one.step in gone]
        removed = [one for one in unwanted if remove_checkpoint(one.path)]
        for one in removed:
            del self._proven[one.path.name]
        return [one.step for one in removed]
