"""What the train supervisor can do: jobs for its workers, and actions, which its loop applies in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.kit.process.process_id import ProcessId
from stoker.supervise.health.exits import Exit
from stoker.supervise.mirror.state import Look
from stoker.supervise.state import Phase


class Job:
    """Work for a worker; at most one job of a `slot` runs at a time.

    A worker that reads nothing for `silent_s` seconds hangs in a mount that does not answer, and is killed.
    """

    slot: ClassVar[str]
    kind: ClassVar[str] = "prove"
    silent_s: ClassVar[float] = 300.0


@dataclass(frozen=True)
class ProveCheckpoint(Job):
    slot = "checkpoint"
    name: str


@dataclass(frozen=True)
class ProveSets(Job):
    """Shard sets to prove: key to the manifest's sha256."""

    slot = "sets"
    sets: Mapping[str, str]


@dataclass(frozen=True)
class CopyHeldout(Job):
    """Held-out windows to copy out of these sets, once for the whole run."""

    slot, kind = "heldout", "hold out"
    sets: Mapping[str, str]
    vocab_size: int


@dataclass(frozen=True)
class MirrorJob(Job):
    """Work on warm. A launch or a rollback waits for it unless `need` is "no".

    Where it fails now, a launch goes on without it ("try") or waits until it succeeds ("wait").
    """

    slot = "mirror"
    silent_s = 120.0  # 64 MB and their fsync take less on any disk worth mirroring to
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
    """One thing to do."""


@dataclass(frozen=True)
class Wait(Action):
    """Nothing can be done now; `doing` is what is waited for, in words."""

    doing: str
    seconds: float = 1.0


@dataclass(frozen=True)
class Pause(Action):
    """Nothing of the phase is tried for some seconds."""

    seconds: float
    doing: str


@dataclass(frozen=True)
class Enter(Action):
    """Begin a phase; proving begins with interrupted rollbacks, which are finished."""

    phase: Phase


@dataclass(frozen=True)
class Leftovers:
    """What is left of an earlier launch: whether its locks are held, and its live processes.

    `is_guarded`: the trainer's lock is held, so a guard (or a sealer) still sees to its end.
    """

    is_guarded: bool
    is_rank0_held: bool
    processes: tuple[ProcessId, ...]


@dataclass(frozen=True)
class ClearLeftovers(Action):
    """Report leftovers once, and send their processes a signal, if any."""

    left: Leftovers
    signal: Literal["", "TERM", "KILL"]


@dataclass(frozen=True)
class MakeRollback(Action):
    """Make the rollback of a request, or refuse it, and answer."""

    request: str


@dataclass(frozen=True)
class Start(Action):
    job: Job
    doing: str


class Settle(Action):
    """Make record and plan agree with the newest proven checkpoint, and prune the older ones."""


@dataclass(frozen=True)
class AnswerEnd(Action):
    """The end of the last launch is on record, and no longer counts."""

    fruitless: int
    best_step: int
    has_progressed: bool
    doubts_data: bool = False


class KeepBooks(Action):
    """Look at new checkpoints, extend the plan, and write what the run needs and no longer needs."""


class LaunchTrainer(Action):
    """Start the trainer from the newest proven checkpoint."""


@dataclass(frozen=True)
class Suspect(Action):
    """The trainer shows no progress; with no reason, it does again."""

    why: str


@dataclass(frozen=True)
class StopTrainer(Action):
    """Ask the trainer to save and end, or kill its guard; `hung` is why it counts as hung."""

    hung: str = ""
    kill_guard: bool = False


@dataclass(frozen=True)
class EndLaunch(Action):
    exit: Exit
    is_forgiven: bool  # the supervisor itself was asked to stop


@dataclass(frozen=True)
class Finish(Action):
    """The run is over."""

    why: str


class Rest(Action):
    """All is proven and mirrored: nothing is left to do."""


@dataclass(frozen=True)
class End(Action):
    """End the supervisor; `failed` is why the run is given up."""

    exit_code: int
    failed: str = ""
