"""Scenarios of one daemon that lives on from kill to kill, itself or a worker of it killed each time.

Most kills fall inside a write, sync, rename or unlink of a process that attached strace to itself at its
start, at a task, or at a message that it tells (support.striking).
"""

from __future__ import annotations

import abc
import contextlib
import random
import signal
import subprocess
import time
from typing import ClassVar

from chaos import strace
from chaos.driver import Launch, Scenario
from chaos.job import Job
from support.processes import has_ended
from support.siege import Siege, kill
from support.striking import Blow, Striker
from support.waiting import rest, wait_until

# How long a kill inside a call is waited for: then whoever gets a task next dies in writing, and if nobody
# does for as long again, somebody dies at once.
PATIENCE_S = 5.0
ENDS = {0, -signal.SIGTERM}  # of a daemon asked to stop; the latter before it could listen

Place = tuple[str, str]  # who dies inside a call, and where in its work: start, task, or what it tells


class BesiegedScenario(Scenario):
    """One daemon and its workers; start() has to make `siege`, `striker` and `random`."""

    daemon: ClassVar[str]  # by its module's name
    siege: Siege | None = None
    striker: Striker
    random: random.Random

    @abc.abstractmethod
    def places(self) -> list[Place]:
        """Who may yet come to make a call, and where in its work; drawn evenly."""

    @abc.abstractmethod
    def blow(self, place: Place, call: str, when: int) -> Blow:
        """The blow for a place and the call that was drawn."""

    @abc.abstractmethod
    def is_over(self) -> bool:
        """Whether everything has come to its end and been tidied up, by what lies on the disks."""

    def needs_a_start(self, target: str) -> bool:
        """Whether that victim is at work only when the daemon has just started."""
        return False

    def step(self, launch: Launch) -> Job:
        return BesiegedJob(self, launch)

    def abandon(self) -> None:
        if self.siege is not None:
            self.siege.end()


class BesiegedJob(Job):
    """From one kill to the next: the daemon is not the job's, it lives on."""

    def __init__(self, scenario: BesiegedScenario, launch: Launch) -> None:
        assert scenario.siege is not None
        self.scenario, self.siege, self.daemon = scenario, scenario.siege, scenario.daemon
        self._struck, self._victim = "", 0
        self._over = False
        self.in_call = launch.in_call
        self.place = scenario.random.choice(scenario.places()) if self.in_call is not None else ("", "")
        if self.siege.running and (
            scenario.random.random() < 0.1 or scenario.needs_a_start(launch.target or self.place[0])
        ):
            self._stop_in_peace()
        if self.in_call is not None and self.place[1]:
            scenario.striker.aim(
                scenario.blow(self.place, self.in_call.call, self.in_call.when), self.in_call.log
            )
            if self.place == (self.daemon, "start"):
                self.siege.kill(self.daemon)
        self.siege.tend()
        self._began = time.monotonic()
        self.process = self.siege.running[self.daemon]

    def _stop_in_peace(self) -> None:
        self.scenario.striker.forget()
        process = self.siege.running[self.daemon]
        if process.poll() is None:
            process.terminate()
            code = process.wait(60)  # of the last strike it may still have been about to die
            assert code in (*ENDS, -signal.SIGKILL), (
                f"ended with {code}: {self.siege.last_words(self.daemon)}"
            )
            del self.siege.running[self.daemon]

    def pid(self, target: str) -> int | None:
        self.siege.tend()
        late = time.monotonic() > self._began + self.scenario.longest_s + PATIENCE_S
        found = self.siege.victim("worker" if target == "any" else target)
        if found is None and late:
            found = self.siege.victim("worker") or self.siege.victim(self.daemon)
        if found is None:
            return None
        self._victim, self._struck = found
        return self._victim

    def phase(self, target: str) -> str:
        taker = self.scenario.striker.taker or self.place[0]
        return self._struck or " ".join((taker, self.place[1])).strip()

    def ended(self) -> bool:
        self._over = self._over or self.scenario.is_over()
        return self._over

    def reap(self, limit_s: float, orphans_s: float) -> int:
        if self._struck:  # dying takes a moment, in which it still looks alive
            wait_until(lambda: has_ended(self._victim), what="the end of who was killed")
        if self.in_call is not None:
            self._await_call()
            if strace.where_killed(self.in_call.log) is not None:
                return -9  # whether or not it was over by then: that is seen in the next step
        if self._over or not (self._struck or self.in_call):
            self._wait_for_the_end(limit_s)
            return 0
        return -9

    def _await_call(self) -> None:
        """Until the kill in a call came, or long enough; then somebody dies all the same."""
        assert self.in_call is not None
        with contextlib.ExitStack() as stack:
            if self.place == (self.daemon, ""):
                stack.callback(strace.let_go, self._attach())
            if self._comes():
                return
        if not self._over:
            self.scenario.striker.aim(Blow("_worker", "task", "write", 1), self.in_call.log)
            self.place = ("", "task")
            if self._comes():
                return
        self.scenario.striker.forget()
        if not self._over and strace.where_killed(self.in_call.log) is None:
            self._kill_another()

    def _comes(self) -> bool:
        """Whether the kill comes while it is waited for."""
        assert self.in_call is not None
        deadline, began = time.monotonic() + PATIENCE_S, time.thread_time()
        while time.monotonic() < deadline and not self.ended():
            if strace.where_killed(self.in_call.log) is not None:
                return True
            self.siege.tend()
            began = rest(began)
        return False

    def _attach(self) -> subprocess.Popen[bytes]:
        assert self.in_call is not None
        pid = self.siege.running[self.daemon].pid
        command = strace.attached(pid, self.in_call.call, self.in_call.when, self.in_call.log, follow=False)
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)

    def _kill_another(self) -> None:
        found = wait_until(lambda: self.ended() or self.siege.victim("worker"), 60.0, "a worker to kill")
        if isinstance(found, tuple):
            kill(found[0])
            self.instead = found[1]

    def _wait_for_the_end(self, limit_s: float) -> None:
        self.scenario.striker.forget()

        def over() -> bool:
            self.siege.tend()
            return self.scenario.is_over()

        wait_until(over, limit_s, "the end of every file")
        self._over = True
        codes = self.siege.stop()
        assert set(codes.values()) <= ENDS, codes
