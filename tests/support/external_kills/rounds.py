"""The run: kill, see from what the next launch begins, and so on; then a look at all that is there."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from support.external_kills.killer import Kill, Victim, draw_kills
from support.external_kills.laws import Disk, Ledger, begun_at, lost, steps_of, too_far_back, wrong_begin
from support.external_kills.scenario import Scenario
from support.processes import kill_tree

T = TypeVar("T")
PATIENCE_S = 240.0  # beyond what the trainer itself sleeps: an import of a large library on a busy machine


class Halted(AssertionError):
    """The run does not go on."""


@dataclass
class Report:
    """What was done, and each law that broke, with what was seen."""

    name: str
    seed: int
    kills: list[str] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)  # the step of each launch
    back: int = 0  # the most steps between the newest finished save and the one resumed from
    saves: int = 0
    breaks: list[tuple[str, str]] = field(default_factory=list)  # law, and what was seen

    def row(self) -> str:
        """One line for a table."""
        broken = {law: sum(one == law for one, _ in self.breaks) for law in LAWS}
        counted = "  ".join(f"{law} {number}" for law, number in broken.items())
        done = f"{self.name:16} seed {self.seed}  kills {len(self.kills)}  launches {len(self.begun)}"
        return f"{done}  saves {self.saves}  back {self.back}  {counted}  begun {self.begun}"


LAWS = ("unfinished", "back", "lost", "halted")


@dataclass
class Rounds:
    """One scenario below a directory."""

    scenario: Scenario
    base: Path
    seed: int
    tell: Callable[[str], None] = lambda _: None

    def run(self, kills: int) -> Report:
        """Kill so often, then let it train on for one more save; what was found."""
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir(parents=True)
        self.report = Report(self.scenario.name, self.seed)
        self.pipeline = self.scenario.make(self.base)
        self.ledger, self.disk = Ledger(self.base / "ledger.jsonl"), Disk(self.base / "home")
        dice = random.Random(f"{self.scenario.name} {self.seed}")
        self.victim = Victim(self.pipeline, self.scenario.environ(self.base), dice)
        try:
            self._next_launch()
            for kill in draw_kills(kills, dice, self.scenario.pace):
                self._kill(kill)
                self._next_launch()
            self._end_well()
        except Exception as problem:
            self._break("halted", f"{type(problem).__name__}: {problem}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                kill_tree(self.victim.daemon.pid)
            self.victim.daemon.kill()
        self.report.saves = sum(one["kind"] == "finished" for one in self.ledger.look())
        return self.report

    def _kill(self, kill: Kill) -> None:
        self._await(lambda: steps_of(self._now(), "step"), "the first step")
        number = len(self.report.begun)
        noted = self._await(lambda: self._noted(kill), f"{kill.note} {kill.nth}", number)
        while time.time() < noted + kill.delay_s:
            time.sleep(0.05)
            self._require_launch(number)
        last = max(steps_of(self._now(), "step"))
        when = f"step {last}, {kill.delay_s:.1f} s after {kill.note} {kill.nth}"
        self.report.kills.append(
            f"kill {len(self.report.kills) + 1}: {kill.target} of launch {number}, {when}"
        )
        self.tell(f"{self.scenario.name}: {self.report.kills[-1]}")
        self.victim.strike(kill)

    def _noted(self, kill: Kill) -> float:
        moments = [one["at"] for one in self._now() if one["kind"] == kill.note]
        return moments[kill.nth - 1] if len(moments) >= kill.nth else 0.0

    def _next_launch(self) -> None:
        number = len(self.report.begun)
        self._await(lambda: len(self.ledger.launches()) > number, f"launch {number + 1}")
        *before, now = self.ledger.launches()
        self.report.begun.append(begun_at(now))
        self.tell(f"{self.scenario.name}: launch {number + 1} begins at step {begun_at(now)}")
        every = self.scenario.pace.every
        for what in wrong_begin(self.ledger, now[0]):
            self._break("unfinished", what)
        if before and not now[0]["problem"]:
            finished = max(steps_of(before[-1], "finished"), default=0)
            self.report.back = max(self.report.back, finished - begun_at(now))
            for what in too_far_back(before[-1], now, every, is_told=self.scenario.is_told):
                self._break("back", what)
        self._look_for_lost()
        if now[0]["problem"]:
            raise Halted("the trainer cannot load what it was given")

    def _look_for_lost(self) -> None:
        for what in lost(self.ledger, self.disk):
            if ("lost", what) not in self.report.breaks:
                self._break("lost", what)

    def _end_well(self) -> None:
        """One more save that is sealed; then all is well, the books balance and nothing is lost."""
        number, sealed = len(self.report.begun), len(self.pipeline.events("checkpoint_sealed"))
        self._await(lambda: steps_of(self._now(), "finished"), "a save", number)
        self._await(lambda: len(self.pipeline.events("checkpoint_sealed")) > sealed, "a seal", number)
        for verb in ("status --check", "audit"):
            if (done := self.victim.ask(verb)).returncode:
                said = f"{done.stdout}{done.stderr}"
                self._break("halted", f"stoker {verb}: exit code {done.returncode}: {said}")
        if code := self.victim.stop():
            self._break("halted", f"the supervisor ended with {code}")
        self._look_for_lost()

    def _now(self) -> list:
        return self.ledger.launches()[-1]

    def _break(self, law: str, what: str) -> None:
        kill = self.report.kills[-1] if self.report.kills else "before the first kill"
        self.report.breaks.append((law, f"launch {len(self.report.begun)}: {what} (after {kill})"))
        self.tell(f"{self.scenario.name}: BROKEN, {law}: {self.report.breaks[-1][1]}")

    def _await(self, condition: Callable[[], T], what: str, launch: int = 0) -> T:
        """Wait for a condition; within a launch, fail where another one begins. Fail where the run halts."""
        deadline = time.monotonic() + 3 * self.scenario.pace.period_s + PATIENCE_S
        while not (value := condition()):
            if launch:
                self._require_launch(launch)
            for word in ("run_halted", "run_failed", "run_finished"):
                for event in self.pipeline.events(word):
                    raise Halted(f"{event}")
            if (code := self.victim.daemon.process.poll()) is not None:
                said = self.victim.daemon.said()[-2000:]
                raise Halted(f"the supervisor ended by itself with {code}: {said}")
            if time.monotonic() > deadline:
                raise Halted(f"{what} does not come: {self.victim.ask('status').stdout}")
            time.sleep(0.1)
        return value

    def _require_launch(self, number: int) -> None:
        if len(self.ledger.launches()) != number:
            ended = self.pipeline.events("trainer_exited")[-1]
            raise Halted(f"a launch ended that nobody had killed: {ended}")


def each_line(report: Report) -> Iterator[str]:
    """The report for people."""
    yield report.row()
    for law, what in report.breaks:
        yield f"    {law}: {what}"
