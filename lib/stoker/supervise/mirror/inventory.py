"""The supervisor's state of the run's checkpoints, and of their mirror between two listings.

`runs/<run>/mirror.json` holds the names that the last listing or copy left on the mirror, also across
restarts. It distinguishes an unmounted warm from an empty warm, and names the copies that could be fetched.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stoker.checkpoints.format import BODY
from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.quarantine import Quarantined, put_back, quarantine_checkpoint
from stoker.checkpoints.retention import (
    History,
    RetentionPolicy,
    candidates,
    find_checkpoints,
    prune,
    remove_checkpoint,
    sweep_leftovers,
)
from stoker.config.schema import Pipeline
from stoker.kit.loop import Backoff
from stoker.plan.positions import Position
from stoker.store.record import parse_json, read_or_set_aside, write_record

RETRY_S = 10.0  # before an unreadable checkpoint is tried again


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, proven since the supervisor started or `sealed`; `body` is its checkpoint.json."""

    path: Path
    step: int
    body: Mapping[str, Any]
    digest: str = ""  # checkpoint.json's sha256
    sealed_at: float | None = None  # when it was sealed, or brought back from the mirror, Unix time

    @property
    def position(self) -> Position:
        return Position.parse(self.body["position"])


BEGINNING = Checkpoint(Path(), 0, {"step": 0, "position": [0, 0], "tokens": 0})  # before the first checkpoint


class Checkpoints:
    """The sealed checkpoints and their proofs. The trainer adds checkpoints, the supervisor removes them."""

    def __init__(self, pipeline: Pipeline) -> None:
        run = pipeline.layout.run(pipeline.train.run)
        self._directory = run.checkpoints
        self._quarantine = pipeline.layout.quarantine
        self._budget = pipeline.quarantine
        keep = pipeline.train.checkpoint
        self._milestones = pipeline.train.milestones
        self.policy = RetentionPolicy(keep.keep_last, keep.keep_every, self._milestones)
        self.kept: set[str] = set()  # names that retention spares until the next launch
        self.evaluated: set[str] = set()  # and those that an evaluation needs now
        self._proven: dict[str, Checkpoint] = {}
        self._retry_at: dict[str, float] = {}
        self._sealed: Checkpoint | None = None

    @property
    def newest(self) -> Checkpoint | None:
        """The newest proven checkpoint."""
        return max(self._proven.values(), key=lambda one: one.step, default=None)

    @property
    def sealed(self) -> Checkpoint | None:
        """The newest checkpoint that `note_sealed` found, while it exists."""
        return self._sealed if self._sealed is not None and self._sealed.path.exists() else None

    @property
    def proven_names(self) -> list[str]:
        return sorted(self._proven)

    def handed_over(self) -> dict[str, Any]:
        """Returns what this process's next image takes for proven and spares."""
        return {"proven": {name: one.digest for name, one in self._proven.items()}, "kept": sorted(self.kept)}

    def adopt(self, body: Mapping[str, Any]) -> None:
        """Takes over the proofs of this process's image before, of checkpoints that are still the same."""
        self.kept = set(body["kept"])
        for name, digest in body["proven"].items():
            with contextlib.suppress(OSError):
                data = (self.path(name) / BODY).read_bytes()
                if hashlib.sha256(data).hexdigest() == digest:
                    self.proven(name, parse_json(data), digest)

    def keep_also(self, milestones: frozenset[int]) -> None:
        """Makes retention keep these steps besides the configured ones."""
        self.policy = replace(self.policy, milestones=self._milestones | milestones)

    def get(self, name: str) -> Checkpoint | None:
        """Returns the proven checkpoint with this name."""
        return self._proven.get(name)

    def path(self, name: str) -> Path:
        return self._directory / name

    def note_sealed(self, history: History) -> None:
        """Finds the newest sealed checkpoint, proven or not, for the status; only while no process seals."""
        found = candidates(find_checkpoints(self._directory), history)
        sealed = (Checkpoint(one.path, one.step, one.body.raw) for one in found if one.body)
        self._sealed = next(sealed, None)

    def before_selection(self) -> list[str]:
        """Forgets missing checkpoints and removes interrupted seals; only while no process seals."""
        self.forget_missing()
        self.kept.clear()
        return sweep_leftovers(self._directory)

    def newest_candidate(self, history: History) -> str:
        """Returns the name of the newest sealed checkpoint of a history, "" without any."""
        return next((one.path.name for one in candidates(find_checkpoints(self._directory), history)), "")

    def unproven(self, history: History, now: float) -> str:
        """Returns the name of the newest sealed checkpoint that is due for a proof, "" without any."""
        found = (one.path.name for one in candidates(find_checkpoints(self._directory), history))
        new = (name for name in found if name not in self._proven)
        return next((name for name in new if self._retry_at.get(name, now) <= now), "")

    def to_mirror(self) -> list[Mirrored]:
        """Returns the mirror entries of the proven checkpoints."""
        return [Mirrored.of(one.body, one.digest) for one in self._proven.values() if one.path.exists()]

    def forget(self, name: str) -> None:
        """Withdraws trust in a checkpoint: it is proven again."""
        self._proven.pop(name, None)

    def forget_missing(self) -> None:
        """Forgets checkpoints that were moved away: another checkpoint may get the same name."""
        for name in [name for name, one in self._proven.items() if not one.path.exists()]:
            del self._proven[name]

    def proven(self, name: str, body: Mapping[str, Any], digest: str) -> bool:
        """Records a successful proof; True when the checkpoint is now the newest."""
        before, path, sealed_at = self.newest, self.path(name), None
        with contextlib.suppress(OSError):
            sealed_at = (path / BODY).stat().st_mtime
        checkpoint = Checkpoint(path, int(body["step"]), body, digest, sealed_at)
        self._proven[name] = checkpoint
        self._retry_at.pop(name, None)
        return before is None or checkpoint.step > before.step

    def unreadable(self, name: str, now: float) -> None:
        """Records an undecided proof: the checkpoint is neither trusted nor rejected, and is tried again."""
        self._proven.pop(name, None)
        self._retry_at[name] = now + RETRY_S

    def reject(self, name: str, reason: str) -> Quarantined:
        """Moves a checkpoint that was proven wrong into quarantine, within its budget."""
        self._proven.pop(name, None)
        return quarantine_checkpoint(
            self._quarantine,
            self.path(name),
            reason,
            keep=self._budget.keep_checkpoints,
            keep_bytes=self._budget.keep_bytes,
        )

    def put_back(self, name: str) -> bool:
        """Takes a checkpoint back that was set aside and not found wrong; False where that cannot be."""
        return put_back(self._quarantine, self.path(name))

    def prune(self) -> list[int]:
        """Removes checkpoints that retention drops and no process reads; returns their steps."""
        self.forget_missing()
        gone = prune({one.step: one.body.get("val_loss") for one in self._proven.values()}, self.policy)
        unwanted = [one for one in self._proven.values() if one.step in gone]
        spared = self.kept | self.evaluated
        removed = [one for one in unwanted if one.path.name not in spared and remove_checkpoint(one.path)]
        for one in removed:
            del self._proven[one.path.name]
        return [one.step for one in removed]


ListingNeed = Literal["wait", "try", "no"]

LOOK_AGAIN_S = 3600.0  # an operator may clear warm by hand
COMPLAINT_S = 600.0
PRUNE_AGAIN_S = 30.0  # the checkpoints left then are being read
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 60.0


class MirrorState:
    """The copies as of the last listing, and the failures of warm; times are monotonic seconds."""

    def __init__(self, path: Path, quarantine: Path) -> None:
        self._path = path
        body = read_or_set_aside(path, quarantine)
        self.has_record = body is not None  # whether any listing ever succeeded
        self.is_fresh = False  # whether a listing succeeded since this daemon started
        self.copies = tuple(Mirrored.parse(copy) for copy in body["copies"]) if body else ()
        self.proven: set[str] = set()  # names of copies proven since this daemon started
        self.trouble: str | None = None  # why the last try at `trouble_doing` failed
        self.trouble_doing = ""
        self.waiting = 0  # checkpoints still to be copied, as of the last listing
        self.retry_at = self.look_at = self.prune_at = self._complain_at = 0.0
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)

    def listed(self, found: Iterable[Mirrored], now: float) -> None:
        """Records a successful listing."""
        self.is_fresh, self.look_at = True, now + LOOK_AGAIN_S
        self._change(found)

    def gone(self, name: str) -> None:
        """Records that a copy is missing."""
        self._change(one for one in self.copies if one.name != name)

    def failed(self, doing: str, reason: str, now: float) -> bool:
        """Records a failure, after which every try waits longer; True when an event is due."""
        self.retry_at, self.look_at = now + self._backoff.next(), 0.0
        is_worth = self.trouble is None or now >= self._complain_at
        if is_worth:
            self._complain_at = now + COMPLAINT_S
        self.trouble, self.trouble_doing = reason, doing
        return is_worth

    def worked(self, doing: str) -> bool:
        """Records a success on warm; True when it ends the trouble, which only the same activity can end."""
        if self.trouble is None or self.trouble_doing != doing:
            return False
        self.trouble, self.retry_at = None, 0.0
        self._backoff.reset()
        return True

    def to_look(self, here: int | None, history: History, *, has_rejected: bool) -> ListingNeed:
        """Returns whether a launch from step `here` (None: the beginning) must list the mirror first.

        `wait`: the mirror could hold a newer checkpoint than any proven here, and an older start would
        silently undo training; `try`: by the record the mirror holds none, but the record may be an old one
        that was put back, so a short wait is worth it. `has_rejected`: a newer checkpoint was just proven
        wrong here.
        """
        step = -1 if here is None else here
        if fallback(self.copies, history, step) or (here is None and not self.has_record):
            return "wait"
        return "try" if has_rejected or not self.is_fresh else "no"

    def status(self, copying: int | None) -> dict[str, Any]:
        """Returns the mirror's status; `copying` is the step whose copy is in progress."""
        newest = max(self.copies, key=lambda one: (one.timeline, one.step), default=None)
        return {
            "step": newest.step if newest else None,
            "copies": len(self.copies),
            "waiting": self.waiting,
            "copying": copying,
            "trouble": self.trouble,
        }

    def _change(self, copies: Iterable[Mirrored]) -> None:
        found = tuple(sorted(copies, key=lambda one: (one.timeline, one.step, one.mark)))
        if not self.has_record or found != self.copies:
            write_record(self._path, {"v": 1, "copies": [asdict(one) for one in found]})
        self.copies, self.has_record = found, True
