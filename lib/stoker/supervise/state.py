"""The state of a train supervisor in its run: plain facts, which another process can read and continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from stoker.store.record import require_version
from stoker.supervise.health.exits import Exit
from stoker.supervise.trainer import Trainer


class Phase(StrEnum):
    CLEANING = "cleaning"  # until no process of an earlier launch is alive
    PROVING = "proving"  # rollbacks, the newest whole checkpoint, the end of the last launch
    BACKOFF = "backoff"  # the delay after a launch that failed
    WAITING = "waiting"  # until the data of a launch is planned, proven and on hot
    TRAINING = "training"
    HALTED = "halted"  # halted or paused: no launch until an operator resumes the run
    FINISHED = "finished"  # the last checkpoints are proven and mirrored, then the supervisor rests


@dataclass(frozen=True)
class RunState:
    """The supervisor's position in its run, without the facts in run.json, plan, checkpoints and mirror.json.

    Times are monotonic seconds.
    """

    phase: Phase
    since: float  # its begin
    doing: str = "starting"
    retry_at: float = 0.0  # the phase waits until then
    retry_doing: str = ""
    failures: int = 0  # launches in a row without progress: each makes the next delay longer
    rollbacks: tuple[str, ...] = ()  # ids of accepted requests that have no answer yet

    # cleaning
    is_reported: bool = False
    is_term_sent: bool = False

    # proving
    proofs: Mapping[str, str] = field(default_factory=dict)  # verdict by checkpoint, in this phase
    look: Literal["", "done", "failed"] = ""  # result of the mirror's listing, in this phase
    look_problem: str = ""
    is_warm_awaited: bool = False  # a listing or fetch that must succeed has failed
    is_settled: bool = False  # record and plan agree with the newest proven checkpoint
    is_decay_kept: bool = False  # a longer horizon cannot start where the decay began: it starts here
    resume: str = ""  # the name of that checkpoint, "" at the run's beginning

    # waiting
    is_gate_open: bool = False

    # training
    trainer: Trainer | None = None  # of this launch, or of the last one until its end is answered
    exit: Exit | None = None  # how the last launch ended
    keep_at: float = 0.0  # when `KeepBooks` is due

    is_at_rest: bool = False
    exit_code: int | None = None  # the supervisor ends with it

    @property
    def live(self) -> Trainer | None:
        """The running trainer."""
        return self.trainer if self.phase is Phase.TRAINING else None

    def entered(self, phase: Phase, now: float) -> RunState:
        """Returns the state at the start of a phase; cleaning resets all but unanswered facts."""
        if phase is not Phase.CLEANING:
            return replace(self, phase=phase, since=now, retry_at=0.0, keep_at=0.0, is_at_rest=False)
        return RunState(
            phase,
            now,
            self.doing,
            failures=self.failures,
            rollbacks=self.rollbacks,
            is_gate_open=self.is_gate_open,
            trainer=self.trainer,
            exit=self.exit,
        )

    def paused(self, seconds: float, doing: str, now: float) -> RunState:
        """Returns the state with a pause, after which unreadable checkpoints are proven again."""
        proofs = {name: verdict for name, verdict in self.proofs.items() if verdict != "unreadable"}
        return replace(self, retry_at=now + seconds, retry_doing=doing, proofs=proofs)

    def record(self) -> dict[str, Any]:
        """Returns the state as JSON, for this process's next image: its clock is the same."""
        return {"v": 1, **_json().dump_python(self, mode="json")}


def read_state(body: Mapping[str, Any]) -> RunState:
    """Returns the state from a `record`."""
    require_version(body, "the supervisor's state")
    return _json().validate_python(body)


@cache
def _json() -> TypeAdapter[RunState]:
    return TypeAdapter(RunState)
