"""The jobs and actions of the train supervisor: workers run jobs, `Effects` carries out actions in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from stoker.kit.process import ProcessId
from stoker.supervise.health.exits import Exit
from stoker.supervise.mirror.inventory import ListingNeed
from stoker.supervise.policy import Response
from stoker.supervise.state import Phase


@dataclass(frozen=True)
class Job:
    """Work for a worker: its kind, a row of the daemon's table, and what it is about.

    A launch or a rollback waits for the end of a job on the mirror, unless `need` is "no". Where that fails,
    the launch continues without it ("try") or waits until it succeeds ("wait").
    """

    kind: str
    subject: Any = ""
    need: ListingNeed = "no"


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
