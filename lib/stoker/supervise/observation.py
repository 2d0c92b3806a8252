"""What the train supervisor sees of its run in one cycle."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.supervise import actions as do
from stoker.supervise.health.exits import GuardedEnd
from stoker.supervise.mirror.inventory import ListingNeed
from stoker.supervise.policy import Facts
from stoker.supervise.run.gates import Gate
from stoker.supervise.trainer_kind import BUILT_IN, TrainerKind


@dataclass(frozen=True)
class AskedRollback:
    """The next rollback to make."""

    request: str  # its id; "": a longer horizon, which starts where the decay of the old one began
    to: int  # the step
    target: str = ""  # the checkpoint of that step; "": none is needed
    is_here: bool = True  # the target is among the local checkpoints
    copy: Mirrored | None = None  # the mirror's copy to fetch where the target is not here


@dataclass(frozen=True)
class Observation:
    """The facts of one cycle; the facts that the phase does not need keep their defaults."""

    kind: TrainerKind = BUILT_IN
    is_stopping: bool = False
    is_once: bool = False
    until: int | None = None  # the step after which an operator wants this supervisor to end
    jobs: Collection[do.Job] = ()  # running
    awaited: do.Job | None = None  # running or due, and to be done before the phase goes on
    fruitless: int = 0  # launches without progress, by run.json
    best_step: int = 0
    over: str | None = None  # why the run is over at its newest checkpoint
    held: str = ""  # why no launch may be made: the run is halted or paused
    is_halted: bool = False
    is_forking: bool = False  # the policy decided on a rollback that is not made yet
    is_outdated: bool = False  # the launch would go past the start of a phase that it does not know

    left: do.Leftovers | None = None

    rollback: AskedRollback | None = None
    newest: str = ""  # the newest proven checkpoint
    candidate: str = ""  # the newest sealed checkpoint of the history
    is_on_history: bool = True  # the candidate, once its proof has read its timeline
    step: int = 0  # of the newest proven checkpoint
    look: ListingNeed = "no"  # whether the mirror must be listed before a launch from the candidate
    newer: Mirrored | None = None  # the mirror's newest copy that is newer than the candidate
    why_not_from_start: str = ""  # why the run cannot begin at step 0

    facts: Facts = field(default_factory=Facts)  # for the policy

    gate: Gate | None = None  # the first closed gate

    end: GuardedEnd | None = None
    goes_on: bool = False  # an operator resumes a run that its trainer had finished
