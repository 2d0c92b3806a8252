"""The driver: plan the kills, carry them out on a scenario's processes, book the phase each one hit."""

from __future__ import annotations

import abc
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from chaos import strace
from chaos.job import Job
from chaos.plan import Strike, plan_strikes
from stoker.kit.process import ProcessId, signal_process
from support.waiting import rest

_LOOK_S = 0.002


class InCall(NamedTuple):
    """A kill to come at the `when`th such call, of which strace will tell in `log`."""

    call: str
    when: int
    log: Path


class Launch:
    """How a scenario starts a process in this step: under strace where the strike wants it."""

    def __init__(self, strike: Strike | None, log: Path) -> None:
        self._strike = strike
        self._log = log

    @property
    def target(self) -> str:
        """Whom a strike at a moment is for; empty for one in a call, or none."""
        return "" if self._strike is None or self._strike.call is not None else self._strike.target

    @property
    def in_call(self) -> InCall | None:
        """The call to be killed in; None for a strike at a moment, or none."""
        if self._strike is None or self._strike.call is None:
            return None
        return InCall(self._strike.call, self._strike.when, self._log)

    def command(self, command: list[str]) -> list[str]:
        """The command to start: as it is, or killed in the call that was drawn."""
        if self._strike is None or self._strike.call is None:
            return command
        return strace.killing(command, self._strike.call, self._strike.when, self._log)


class Scenario(abc.ABC):
    """A job that must come out right however often its processes are killed."""

    name: ClassVar[str]
    targets: ClassVar[tuple[str, ...]] = ("main",)  # the processes that can be chosen
    calls: ClassVar[Mapping[str, int]] = {}  # calls worth dying in, and about how often the job makes each
    timed_every: ClassVar[int] = 2  # one kill in so many falls at a moment, the others in a call
    longest_s: ClassVar[float] = 1.0  # timed kills fall within this long after a step began
    limit_s: ClassVar[float] = 60.0  # a step that takes longer has hung
    orphans_s: ClassVar[float] = 15.0  # how long what a killed process started may outlive it
    mounts: ClassVar[bool] = False  # needs a namespace of mounts to itself (support.mounts)
    kills: int = 0  # how many there will be, told before the first start
    seed: int = 0  # for what else is drawn, likewise

    @abc.abstractmethod
    def start(self, directory: Path) -> None:
        """Make a new, empty directory ready; called again with another one when a job is done."""

    @abc.abstractmethod
    def step(self, launch: Launch) -> Job:
        """Start the job's processes, or start them again: through launch.command(), for the one to strike."""

    @abc.abstractmethod
    def check(self) -> None:
        """Assert, after a job was done, that its result is right."""

    def notes(self) -> tuple[str, ...]:
        """What else is worth telling of all that was done, a line each."""
        return ()

    def abandon(self) -> None:  # noqa: B027 - most scenarios have nothing to end
        """End what lives on from step to step, whatever was found; called after every round."""


@dataclass(frozen=True)
class Hit:
    """What became of a strike: the phase it hit, or None where the job was done before."""

    strike: Strike
    phase: str | None
    place: str = ""


@dataclass(frozen=True)
class Report:
    """All strikes of one scenario in order."""

    scenario: str
    seed: int
    rounds: int
    hits: tuple[Hit, ...]
    skipped: int  # strikes in calls, on a machine without strace
    notes: tuple[str, ...] = ()

    @property
    def kills(self) -> int:
        """How many strikes hit a process."""
        return sum(hit.phase is not None for hit in self.hits)

    def phases(self) -> dict[str, int]:
        """How often each phase was hit."""
        return dict(Counter(hit.phase for hit in self.hits if hit.phase is not None).most_common())

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {**asdict(self), "kills": self.kills, "phases": self.phases()}

    def table(self) -> str:
        """For people."""
        late = len(self.hits) - self.kills
        lines = [f"{self.scenario}: {self.kills} kills in {self.rounds} rounds, seed {self.seed}"]
        lines += [f"  {count:5}  {phase}" for phase, count in self.phases().items()]
        lines += [f"  {late:5}  (came after the job was done)"] if late else []
        lines += [f"  {self.skipped:5}  SKIPPED: no strace here (apt install strace)"] if self.skipped else []
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def run_scenario(scenario: Scenario, *, kills: int, seed: int, directory: Path) -> Report:
    """Kill the scenario's processes as planned, let each round finish in peace, and check its result.

    Raises AssertionError when a result is wrong, a process fails by itself, hangs, or leaves orphans.
    """
    strikes = plan_strikes(
        kills,
        seed,
        scenario.targets,
        scenario.longest_s,
        scenario.calls,
        timed_every=scenario.timed_every,
    )
    possible = strikes if strace.is_here() else tuple(strike for strike in strikes if strike.call is None)
    if len(possible) < len(strikes):
        print(
            f"chaos: no strace here: {len(strikes) - len(possible)} kills inside system calls are skipped",
            file=sys.stderr,
        )
    scenario.kills, scenario.seed = len(possible), seed
    hits: list[Hit] = []
    rounds = 0
    while True:
        rounds += 1
        place = directory / f"round-{rounds}"
        place.mkdir(parents=True)
        try:
            scenario.start(place)
            done = False
            while not done and len(hits) < len(possible):
                hit = _strike(scenario, possible[len(hits)], directory)
                hits.append(hit)
                done = hit.phase is None
            if not done:
                _finish(scenario, directory)
            scenario.check()
        finally:
            scenario.abandon()
        if len(hits) == len(possible):
            skipped = len(strikes) - len(possible)
            return Report(scenario.name, seed, rounds, tuple(hits), skipped, scenario.notes())


def _strike(scenario: Scenario, strike: Strike, directory: Path) -> Hit:
    log = directory / f"strace-{strike.number}.log"
    job = scenario.step(Launch(strike, log))
    struck = _kill_in_time(job, strike, scenario.limit_s) if strike.call is None else None
    code = job.reap(scenario.limit_s, scenario.orphans_s)
    if strike.call is not None and (found := strace.where_killed(log)) is not None:
        return Hit(strike, f"{found[0]} in {job.phase(strike.target)}", found[1])
    if job.instead is not None:
        return Hit(strike, job.instead)
    if struck is not None and not (struck == job.process.pid and code == 0):  # else it ended just before
        return Hit(strike, job.phase(strike.target))
    assert code == 0, f"{scenario.name}: ended by itself with {code}, not killed (strike {strike})"
    return Hit(strike, None)


def _kill_in_time(job: Job, strike: Strike, limit_s: float) -> int | None:
    due = time.monotonic() + strike.delay_s
    began = time.thread_time()
    while not job.ended():
        now = time.monotonic()
        assert now < due + limit_s, f"there was no process {strike.target} for {limit_s:g} s"
        pid = job.pid(strike.target) if now >= due else None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                signal_process(ProcessId.of(pid), signal.SIGKILL)
                return pid
        began = rest(began, _LOOK_S)
    return None


def _finish(scenario: Scenario, directory: Path) -> None:
    code = scenario.step(Launch(None, directory)).reap(scenario.limit_s, scenario.orphans_s)
    assert code == 0, f"{scenario.name}: left in peace it ended with {code}"
