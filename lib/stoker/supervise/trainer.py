"""A launch as the supervisor sees it: plain facts out of its trainer's messages, its output and /proc."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.kit.process import ProcessId
from stoker.plan.positions import Position
from stoker.supervise.health.evidence import Evidence
from stoker.supervise.health.exits import GuardedEnd
from stoker.supervise.health.liveness import StepTimes, Stillness, Work
from stoker.supervise.health.trainer_protocol import CheckpointNotice, TrainerView, heard, parse
from stoker.supervise.run.launch_record import Launch

KEPT_KILLS = 12  # samples, of a minute: a launcher outlives the rank that the kernel killed by half of it
MOST_STEPS = 1000  # that two messages a tenth of a second apart can tell


@dataclass(frozen=True)
class Trainer:
    """One launch, by its trainer's messages and /proc."""

    launch: Launch
    guard: ProcessId
    view: TrainerView
    stillness: Stillness
    sample_at: float  # when /proc is read next
    pid: int | None = None  # the trainer's, once its guard has reported it
    step_times: StepTimes = field(default_factory=StepTimes)
    is_suspected: bool = False
    is_hung: bool = False
    tells_steps: bool = False
    read_as: str = ""  # of whose form the steps in its output are
    read_at: tuple[float, float] | None = None  # when the output had changed last, and was read; Unix times
    # Seconds of the steps and of the saves that the last words ended.
    steps_s: tuple[float, ...] = ()
    saves_s: tuple[float, ...] = ()
    saves_failed: tuple[str, ...] = ()  # why, as the last words tell
    saves_in_place: tuple[str, ...] = ()
    told: tuple[CheckpointNotice, ...] = ()  # checkpoints
    unknown: tuple[str, ...] = ()  # keys that nobody knows, of its first such word
    # What it told of its numerics, with the steps made before, and is not recorded yet.
    numerics: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    stop_time_s: float = 0.0  # that its guard gives it, whatever a reload has changed since
    stop_asked_at: float | None = None
    evidence: Evidence = field(default_factory=Evidence)  # gathered so far
    oom_kills: tuple[int, ...] = ()  # the kernel's counter at the last samples

    @property
    def step(self) -> int:
        """The newest step that the trainer reported, or the step it resumed from."""
        return self.view.step if self.view.step is not None else self.launch.resume_step

    @property
    def position(self) -> Position | None:
        """The position that the trainer reported last; None before its first step."""
        return Position(*self.view.position) if self.view.position else None

    @property
    def is_read(self) -> bool:
        """Whether its steps are known from its output alone."""
        return self.launch.reads_output and not self.tells_steps

    def after_output(
        self, read: Sequence[bytes], now: float, *, has_moved: bool, read_as: str = ""
    ) -> Trainer:
        """Returns a trainer that `is_read` after these words, read from its output since the last look.

        `has_moved`: some count in the output has changed. What was read at once took no time from step to
        step: only the last one ends an interval.
        """
        view = self.view.moved(now) if has_moved else self.view
        for datagram in read[:-1]:
            view = heard(view, parse(datagram, self.launch.launch) or {}, now)
        return replace(
            replace(self, view=view).after_words(read[-1:], now), tells_steps=False, read_as=read_as
        )

    def after_words(self, datagrams: Iterable[bytes], now: float) -> Trainer:
        """Returns the trainer after these datagrams."""
        view, times, tells_steps = self.view, self.step_times, self.tells_steps
        steps_s, saves_s = list[float](), list[float]()
        failed, in_place, told = list[str](), list[str](), list[CheckpointNotice]()
        numerics, unknown = list(self.numerics), self.unknown
        for datagram in datagrams:
            said = parse(datagram, self.launch.launch)
            if said is None:
                continue
            unknown = unknown or said.get("unknown", ())
            failed += [said["save_failed"]] if "save_failed" in said else []
            in_place += [said["save_in_place"]] if "save_in_place" in said else []
            if "numerics" in said:
                numerics.append((said.get("step", self.step), said["numerics"]))
            tells_steps |= "step" in said
            before, view = view, heard(view, said, now)
            if "checkpoint" in said and not said.get("rank"):
                step = view.step if tells_steps else None  # what is read of its output lags behind
                told.append(CheckpointNotice(said["checkpoint"], said.get("step", step), said.get("at")))
            if before.phase == "checkpoint" != view.phase:
                saves_s.append(now - before.phase_at)
            if view.phase != "train":
                times = times.interrupted()
            elif "step" in said:
                made = said["step"] - times.last[0] if times.last else 0
                times = times.stepped(said["step"], now)
                if made > 0:
                    steps_s += times.times[-1:] * min(made, MOST_STEPS)
        return replace(
            self,
            view=view,
            step_times=times,
            tells_steps=tells_steps,
            steps_s=tuple(steps_s),
            saves_s=tuple(saves_s),
            saves_failed=tuple(failed),
            saves_in_place=tuple(in_place),
            told=tuple(told),
            unknown=unknown,
            numerics=tuple(numerics),
        )

    def sampled(self, work: Work, kills: int, now: float, *, next_at: float) -> Trainer:
        """Returns the trainer after a sample; `kills` is the kernel's count, the next is due at `next_at`."""
        return replace(
            self,
            stillness=self.stillness.sampled(work, now),
            sample_at=next_at,
            oom_kills=(*self.oom_kills, kills)[-KEPT_KILLS:],
            evidence=replace(self.evidence, peak_bytes=max(self.evidence.peak_bytes, work.rss_bytes)),
        )

    def ended(self, end: GuardedEnd, kills: int, **facts: Any) -> Trainer:
        """Returns the trainer with the evidence after its end; no kill met one that ended with 0."""
        evidence = replace(
            self.evidence,
            phase=self.view.phase,
            step=self.step,
            ending=self.view.finished,
            oom_kills=kills - self.oom_kills[0] if self.oom_kills and end.exit_code != 0 else 0,
            peak_bytes=max(self.evidence.peak_bytes, end.peak_bytes),
            **facts,
        )
        return replace(self, evidence=evidence)

    def excused(self, now: float) -> Trainer:
        """Returns the trainer with its silence counted from now: machine or supervisor did not run."""
        view = replace(self.view.moved(now), heard_at=now)
        return replace(self, view=view, stillness=Stillness(now, now))

    def believed(self) -> Trainer:
        """Returns a trainer whose wait for data is no time without progress, as far as it has told of it."""
        return replace(self, view=self.view.moved(self.view.heard_at))
