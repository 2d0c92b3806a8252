"""Where a train supervisor is in its run: plain facts, which can be written down and taken up again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from stoker.kit.process.process_id import ProcessId
from stoker.plan.positions import Position
from stoker.store.parsing import require_version
from stoker.supervise.health.exits import Exit
from stoker.supervise.health.liveness import StepTimes, Stillness, Work
from stoker.supervise.health.trainer_protocol import Moment, TrainerView, heard, parse
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.record import Heldout


class Phase(StrEnum):
    """What the supervisor is about."""

    CLEANING = "cleaning"  # until nothing of an earlier launch is alive
    PROVING = "proving"  # rollbacks, the newest whole checkpoint, the end of the last launch
    BACKOFF = "backoff"  # the delay after a launch that failed
    WAITING = "waiting"  # until what a launch needs is planned, proven and on hot
    TRAINING = "training"
    FINISHED = "finished"  # the last checkpoints are proven and mirrored, then nothing is left to do


@dataclass(frozen=True)
class Trainer:
    """One launch, as its trainer's words and /proc show it."""

    launch: Launch
    guard: ProcessId
    view: TrainerView
    stillness: Stillness
    sample_at: Moment  # when /proc is looked at next
    pid: int | None = None  # the trainer's, once its guard has reported it
    step_times: StepTimes = field(default_factory=StepTimes)
    rss_bytes: int = 0  # of the trainer and what it started
    is_suspected: bool = False
    is_hung: bool = False
    stop_asked_at: Moment | None = None

    @property
    def step(self) -> int:
        """The newest step the trainer reported, or the one it resumed from."""
        return self.view.step if self.view.step is not None else self.launch.resume_step

    @property
    def position(self) -> Position | None:
        """The position the trainer reported last; None before its first step."""
        return Position(*self.view.position) if self.view.position else None

    def after_words(self, datagrams: Iterable[bytes], now: float) -> Trainer:
        """With what these datagrams say taken in."""
        view, times = self.view, self.step_times
        for datagram in datagrams:
            said = parse(datagram, self.launch.launch)
            if said is None:
                continue
            view = heard(view, said, now)
            if view.phase != "train":
                times = times.interrupted()
            elif "step" in said:
                times = times.stepped(said["step"], now)
        return replace(self, view=view, step_times=times)

    def sampled(self, work: Work, rss_bytes: int, now: float, *, next_at: float) -> Trainer:
        """With what /proc shows, until the next sample."""
        stillness = self.stillness.sampled(work, now)
        return replace(self, stillness=stillness, rss_bytes=rss_bytes, sample_at=next_at)

    def excused(self, now: float) -> Trainer:
        """With its silence counted from now on: the machine, or this supervisor, did not run until now."""
        view = replace(self.view, heard_at=now, moved_at=now)
        return replace(self, view=view, stillness=Stillness(now, now))


@dataclass(frozen=True)
class RunState:
    """The supervisor's position in its run; times are monotonic seconds.

    What is durable (run.json, plan, checkpoints, mirror.json) is not repeated here.
    """

    phase: Phase = Phase.CLEANING
    since: Moment = 0.0
    doing: str = "starting"
    retry_at: Moment = 0.0  # nothing of the phase is tried before
    retry_doing: str = ""
    failures: int = 0  # launches in a row that got nowhere: the next delay is longer
    rollbacks: tuple[str, ...] = ()  # ids of the requests that were accepted and are not answered yet

    # cleaning
    is_reported: bool = False
    is_term_sent: bool = False

    # proving
    proofs: Mapping[str, str] = field(default_factory=dict)  # verdict by checkpoint, in this phase
    look: Literal["", "done", "failed"] = ""  # at the mirror, in this phase
    look_problem: str = ""
    is_warm_awaited: bool = False  # a look or a fetch that must succeed has failed
    is_settled: bool = False  # record and plan agree with the newest proven checkpoint
    resume: str = ""  # its name, "" where the run begins

    # waiting
    is_gate_open: bool = False
    heldout: Heldout | None = None  # once it is copied; of no windows where there is no held-out text

    # training
    trainer: Trainer | None = None  # of this launch, or of the last one until its end is answered
    exit: Exit | None = None  # how the last launch ended
    keep_at: Moment = 0.0  # when plan and books are looked at next

    is_at_rest: bool = False
    exit_code: int | None = None  # the supervisor ends with it

    @property
    def live(self) -> Trainer | None:
        """The trainer that is running."""
        return self.trainer if self.phase is Phase.TRAINING else None

    def entered(self, phase: Phase, now: float) -> RunState:
        """At the beginning of a phase; cleaning begins a new round, which keeps what is not answered yet."""
        if phase is not Phase.CLEANING:
            return replace(self, phase=phase, since=now, retry_at=0.0, keep_at=0.0, is_at_rest=False)
        return RunState(
            phase,
            now,
            self.doing,
            failures=self.failures,
            rollbacks=self.rollbacks,
            is_gate_open=self.is_gate_open,
            heldout=self.heldout,
            trainer=self.trainer,
            exit=self.exit,
        )

    def paused(self, seconds: float, doing: str, now: float) -> RunState:
        """With nothing of the phase tried for so long; what could not be read is then read again."""
        proofs = {name: verdict for name, verdict in self.proofs.items() if verdict != "unreadable"}
        return replace(self, retry_at=now + seconds, retry_doing=doing, proofs=proofs)

    def record(self, now: float) -> dict[str, Any]:
        """The state as JSON, its times counted from now."""
        return {"v": 1, **_json().dump_python(self, mode="json", context=now)}


def read_state(body: Mapping[str, Any], now: float) -> RunState:
    """The state that `record` made, on this process's clock."""
    require_version(body, "the supervisor's state")
    return _json().validate_python(body, context=now)


@cache
def _json() -> TypeAdapter[RunState]:
    return TypeAdapter(RunState)
