"""The jobs and actions of the train supervisor: workers run jobs, `Effects` carries out actions in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.kit.process import ProcessId
from stoker.supervise.health.exits import Exit
from stoker.supervise.mirror.inventory import Look
from stoker.supervise.policy import Response
from stoker.supervise.state import Phase


class Job:
    """Work for a worker; at most one job of a `slot` runs at a time.

    A worker that makes no progress for `silent_s` seconds hangs in a dead mount; the supervisor kills it.
    """

    slot: ClassVar[str]
    module: ClassVar[str]  # of the worker
    kind: ClassVar[str] = "prove"
    silent_s: ClassVar[float] = 300.0


@dataclass(frozen=True)
class ProveCheckpoint(Job):
    slot, module = "checkpoint", "stoker.checkpoints.proof_worker"
    name: str


@dataclass(frozen=True)
class ProveOrigin(Job):
    """Proves the checkpoint whose parameters a new run begins with."""

    slot, module = "origin", "stoker.checkpoints.proof_worker"
    path: str


@dataclass(frozen=True)
class ProveSets(Job):
    slot, module = "sets", "stoker.shards.format.proof_worker"
    sets: Mapping[str, str]  # key -> sha256 of the manifest


@dataclass(frozen=True)
class CopyHeldout(Job):
    """Copies the held-out windows out of these sets, once for the whole run."""

    slot, module, kind = "heldout", "stoker.plan.heldout_worker", "hold out"
    sets: Mapping[str, str]
    vocab_size: int


class ExternalJob(Job):
    """A job in the directories of a trainer of the user's own, which may hang."""

    slot, module = "external", "stoker.checkpoints.external.worker"
    silent_s = 120.0


@dataclass(frozen=True)
class WatchSaves(ExternalJob):
    """Seals what the running trainer saves, until it is stopped."""

    kind = "watch"


@dataclass(frozen=True)
class SealSaves(ExternalJob):
    """Seals what an ended trainer has left, or `origin`, the path that a new run begins with."""

    kind = "look"
    origin: str | None = None


@dataclass(frozen=True)
class RestoreSave(ExternalJob):
    """Makes the trainer's path hold the checkpoint of this name; "": the run's beginning, without one."""

    kind = "restore"
    name: str


@dataclass(frozen=True)
class MirrorJob(Job):
    """A job on warm. A launch or a rollback waits for its end, unless `need` is "no".

    Where the job fails, the launch continues without it ("try") or waits until it succeeds ("wait").
    """

    slot, module = "mirror", "stoker.checkpoints.mirror.mirror_worker"
    silent_s = 120.0  # a worker copies 64 MB at a time with fsync; any usable disk is faster
    need: Look = field(default="no", kw_only=True)


class ListMirror(MirrorJob):
    kind = "list"
    silent_s = 30.0  # a launch waits for it


@dataclass(frozen=True)
class CopyToMirror(MirrorJob):
    kind = "copy"
    copy: Mirrored


@dataclass(frozen=True)
class PruneMirror(MirrorJob):
    kind = "prune"
    names: tuple[str, ...]


@dataclass(frozen=True)
class FetchCopy(MirrorJob):
    kind = "fetch"
    copy: Mirrored


@dataclass(frozen=True)
class Action:
    """An action that `decide` chooses and `Effects` carries out."""


@dataclass(frozen=True)
class Wait(Action):
    """Nothing can be done for some seconds; `doing` is the status text of the wait, "" to keep the last."""

    doing: str
    seconds: float = 1.0


@dataclass(frozen=True)
class Pause(Action):
    """Nothing of the phase is tried for some seconds, except to end; `doing` is the status text."""

    seconds: float
    doing: str


@dataclass(frozen=True)
class Enter(Action):
    """Begin a phase; proving first finishes an interrupted rollback."""

    phase: Phase


@dataclass(frozen=True)
class Leftovers:
    """The leftovers of an earlier launch: its held locks and live processes."""

    is_guarded: bool  # trainer.lock is held: a guard (or a sealer) is still ending the launch
    is_rank0_held: bool
    processes: tuple[ProcessId, ...]


@dataclass(frozen=True)
class ClearLeftovers(Action):
    left: Leftovers
    signal: Literal["", "TERM", "KILL"]


@dataclass(frozen=True)
class MakeRollback(Action):
    """Make or refuse the rollback of a request, and answer; that of a longer horizon where it is ""."""

    request: str


@dataclass(frozen=True)
class Start(Action):
    job: Job
    doing: str


class Settle(Action):
    """Make record and plan agree with the newest proven checkpoint, and prune the older ones."""


@dataclass(frozen=True)
class AnswerEnd(Action):
    """Record the end of the last launch and what follows it in run.json, and clear it from the state."""

    fruitless: int
    best_step: int
    has_progressed: bool
    doubts_data: bool = False
    response: Response = field(default_factory=Response)
    kind: str = ""  # the class of the end


class KeepBooks(Action):
    """Prove new checkpoints, extend the plan, write consumed.json; before a launch, check its gates."""


class LaunchTrainer(Action):
    """Start the trainer from the newest proven checkpoint."""


@dataclass(frozen=True)
class Suspect(Action):
    """The trainer shows no progress, for a reason; "": the trainer shows progress again."""

    why: str


@dataclass(frozen=True)
class StopTrainer(Action):
    """Ask the trainer to save and end, or kill its guard; `hung` is why the trainer counts as hung, or ""."""

    hung: str = ""
    kill_guard: bool = False


@dataclass(frozen=True)
class EndLaunch(Action):
    exit: Exit
    is_forgiven: bool  # an operator stopped the supervisor: the launch does not count as fruitless
    exit_code: int | None = None  # as a shell has it


@dataclass(frozen=True)
class Halt(Action):
    """Make no more launches until an operator resumes the run or changes its file."""

    reason: str


@dataclass(frozen=True)
class Finish(Action):
    why: str


class Rest(Action):
    """All checkpoints are proven and mirrored: the supervisor has no work left."""


@dataclass(frozen=True)
class End(Action):
    """End the supervisor; `failed` is why the run is given up, or ""."""

    exit_code: int
    failed: str = ""
