"""What the train supervisor can do: jobs for its workers, and actions, which its loop applies in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.supervise.health.exit_class import Exit
from stoker.supervise.run.record import Heldout
from stoker.supervise.state import Phase


class AnyJob:
    """Work for a worker; at most one job of a `slot` runs at a time.

    A launch or a rollback waits for one that `is_awaited`.
    """

    slot: ClassVar[str]
    kind: ClassVar[str]
    is_awaited: bool = True


@dataclass(frozen=True)
class ProveCheckpoint(AnyJob):
    slot, kind = "checkpoint", "prove"
    name: str


@dataclass(frozen=True)
class ProveSets(AnyJob):
    """Shard sets to prove: key to the manifest's sha256."""

    slot, kind = "sets", "prove"
    sets: Mapping[str, str]


@dataclass(frozen=True)
class CopyHeldout(AnyJob):
    """Held-out windows to copy out of these sets, once for the whole run."""

    slot, kind = "heldout", "hold out"
    sets: Mapping[str, str]
    vocab_size: int


class MirrorJob(AnyJob):
    """Work on warm."""

    slot = "mirror"


@dataclass(frozen=True)
class ListMirror(MirrorJob):
    """A look at what the mirror holds; without `must` a launch goes on if it fails."""

    kind = "list"
    is_awaited: bool = False
    must: bool = False


@dataclass(frozen=True)
class CopyToMirror(MirrorJob):
    kind = "copy"
    copy: Mirrored
    is_awaited: bool = False


@dataclass(frozen=True)
class PruneMirror(MirrorJob):
    kind = "prune"
    names: tuple[str, ...]
    is_awaited: bool = False


@dataclass(frozen=True)
class FetchCopy(MirrorJob):
    kind = "fetch"
    copy: Mirrored
    is_for_rollback: bool = False


@dataclass(frozen=True)
class RestoreHeldout(MirrorJob):
    kind = "heldout"
    sha256: str


Job = ProveCheckpoint | ProveSets | CopyHeldout | MirrorJob


@dataclass(frozen=True)
class Action:
    """One thing to do, or one fact to write down."""


@dataclass(frozen=True)
class Wait(Action):
    """Nothing can be done now; `doing` is what is waited for, in words."""

    doing: str
    seconds: float = 1.0


@dataclass(frozen=True)
class Pause(Action):
    """Nothing of the phase is tried for some seconds; `is_failure` makes the next delay longer."""

    seconds: float
    doing: str
    is_failure: bool = False


@dataclass(frozen=True)
class Enter(Action):
    phase: Phase


@dataclass(frozen=True)
class ClearLeftovers(Action):
    """Processes of an earlier launch are alive, or its locks are held: report it once, and signal them."""

    signal: Literal["", "TERM", "KILL"]


class TakeUpRollbacks(Action):
    """Finish interrupted rollbacks, and accept those that were requested while no supervisor ran."""


@dataclass(frozen=True)
class MakeRollback(Action):
    """Make the rollback of a request, or refuse it, and answer."""

    request: str


@dataclass(frozen=True)
class Start(Action):
    job: Job
    doing: str = ""


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


# What the end of a job makes true


@dataclass(frozen=True)
class CheckpointProved(Action):
    """The verdict on a checkpoint; body and digest where it is proven."""

    name: str
    verdict: Literal["proven", "invalid", "unreadable"]
    reason: str = ""
    body: Mapping[str, Any] | None = None
    digest: str = ""


@dataclass(frozen=True)
class SetsProved(Action):
    """What is wrong with each set, by key: nothing where it is proven."""

    sets: Mapping[str, str]
    wrong: Mapping[str, str]


@dataclass(frozen=True)
class HeldoutCopied(Action):
    """Held-out windows, None where there is no held-out text; `problem` is why there are none yet."""

    heldout: Heldout | None = None
    problem: str = ""


@dataclass(frozen=True)
class MirrorFailed(Action):
    job: MirrorJob
    reason: str


@dataclass(frozen=True)
class MirrorListed(Action):
    copies: tuple[Mirrored, ...]
    foreign: tuple[str, ...]
    timelines: str | None  # the newest copy of timelines.jsonl
    is_awaited: bool = False


@dataclass(frozen=True)
class CopyMade(Action):
    copy: Mirrored
    set_aside: str | None = None


@dataclass(frozen=True)
class SourceDiffers(Action):
    """A checkpoint here is not what was proven: it is proven again."""

    name: str
    reason: str


@dataclass(frozen=True)
class CopiesPruned(Action):
    names: tuple[str, ...]


@dataclass(frozen=True)
class CopyBad(Action):
    """A copy was proven wrong, or is gone; nothing was fetched."""

    name: str
    state: str
    reason: str
    set_aside: str | None


@dataclass(frozen=True)
class CopyFetched(Action):
    """A copy is back among the checkpoints, proven there."""

    job: FetchCopy
    body: Mapping[str, Any]
    digest: str
    logs: tuple[str, ...]


@dataclass(frozen=True)
class HeldoutRestored(Action):
    """`state`: what became of heldout.bin: brought, missing or bad."""

    state: str
