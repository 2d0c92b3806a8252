"""A real process of a scenario: started, listened to, killed, and gone before the next step."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from stoker.kit.process import ProcessId, processes_with_environment, signal_process
from support.waiting import rest

START = "start"
MARK = "STOKER_CHAOS_JOB"
_TESTS = str(Path(__file__).parent.parent)


class Job:
    """One command that tells its phases as JSON lines on its standard output: {"kind":"phase","phase":...}.

    Override pid() and phase() where a job has several processes to aim at, or tells its phases elsewhere.
    What the command starts is found again by a mark in its environment, whatever its session or parent;
    modules of tests/ can be run (`python -m chaos.scenarios.store`).
    """

    instead: str | None = None  # whom a job that lives on killed when the call to die in never came

    def __init__(
        self, command: list[str], *, environ: Mapping[str, str] | None = None, output: Path | None = None
    ):
        self._told = START
        self._mark = secrets.token_hex(8)
        self._errors = output.open("ab") if output else subprocess.DEVNULL
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={"PYTHONPATH": _TESTS, **(os.environ if environ is None else environ), MARK: self._mark},
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def pid(self, target: str) -> int | None:
        """The process to kill; None while there is none."""
        return self.process.pid if self.process.poll() is None else None

    def phase(self, target: str) -> str:
        """What the process was doing when it last said so."""
        return self._told

    def ended(self) -> bool:
        """Whether the job's first process is gone."""
        return self.process.poll() is not None

    def reap(self, limit_s: float, orphans_s: float) -> int:
        """Wait until all of the job is gone, by its own doing: the leader's exit code, negative for a signal.

        AssertionError when the leader still runs after limit_s, or what it started orphans_s after its end.
        """
        try:
            code = self.process.wait(limit_s)
            left = self._wait_for_the_rest(orphans_s)
            assert not left, f"left behind {orphans_s:g} s after its parent's end: {left}"
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hung: {self.process.args} still ran after {limit_s:g} s") from None
        finally:
            for process in self._members():
                signal_process(process, signal.SIGKILL)
            self.process.wait()
            self._listener.join()
            if self._errors is not subprocess.DEVNULL:
                self._errors.close()
        return code

    def _wait_for_the_rest(self, orphans_s: float) -> list[ProcessId]:
        deadline, began = time.monotonic() + orphans_s, time.thread_time()
        while (left := self._members()) and time.monotonic() < deadline:
            began = rest(began)
        return left

    def _members(self) -> list[ProcessId]:
        return processes_with_environment(MARK, self._mark)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # half a line, from a process that was killed while it wrote
            if isinstance(message, dict) and "phase" in message:
                self._told = str(message["phase"])
        self.process.stdout.close()
