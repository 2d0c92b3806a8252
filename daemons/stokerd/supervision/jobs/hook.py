"""Runs the command of train.on_checkpoint beside training, after a checkpoint is proven.

One command runs at a time, for the newest proven checkpoint: those proven meanwhile are passed over. Its last
end is in hook.json, so a restart repeats only what did not end. A guard ends all that the command started,
also where the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.checkpoints.retention import reading
from stoker.kit.exec import child_environment
from stoker.kit.guard import guard_command
from stoker.kit.process import readable, signal_name
from stoker.store.errors import StorageError
from stoker.store.record import read_or_set_aside, utc_now, write_record
from stoker.supervise.mirror.inventory import Checkpoint
from stokerd.supervision.run import Run

RESULTS = ("ok", "failed", "timed_out")
GRACE_S = 5.0  # from TERM to KILL
LAST_S = 2.0  # that a guard needs beyond that


@dataclass
class Running:
    """A command at work under its guard; `held` keeps retention from its checkpoint until all has ended."""

    guard: subprocess.Popen[bytes]
    pidfd: int  # readable at the guard's end
    checkpoint: Checkpoint
    held: contextlib.ExitStack
    began: float
    is_late: bool = False  # its time is over, and it is asked to end


class CheckpointHook:
    def __init__(self, run: Run) -> None:
        self.run, self.command = run, run.pipeline.train.hook
        last = read_or_set_aside(run.layout.hook, run.pipeline.layout.quarantine) or {}
        self._done = last.get("digest")  # of the checkpoint that a command last ended for
        self._running: Running | None = None

    @property
    def pids(self) -> set[int]:
        return {self._running.guard.pid} if self._running is not None else set()

    @property
    def is_busy(self) -> bool:
        """Whether a command runs or is due."""
        return self._running is not None or self._due is not None

    @property
    def _due(self) -> Checkpoint | None:
        newest = self.run.newest
        return newest if self.command and newest is not None and newest.digest != self._done else None

    def look(self) -> None:
        """Notes the end of a command, ends one whose time is over, starts one that is due."""
        if self._running is not None:
            self._look_at(self._running)
        if self._running is None and (newest := self._due) is not None and not self.run.context.stopping:
            with contextlib.suppress(OSError):  # moved away just now, or no process to be had: the next look
                self._start(newest)

    def stop(self) -> None:
        """Ends a running command; it is started again where its checkpoint is still the newest."""
        if (running := self._running) is not None:
            running.guard.terminate()
            readable(running.pidfd, timeout_s=GRACE_S + LAST_S)
            self._forget(running)

    def _start(self, checkpoint: Checkpoint) -> None:
        words = {"STOKER_CHECKPOINT": str(checkpoint.path), "STOKER_STEP": str(checkpoint.step)}
        with contextlib.ExitStack() as held, open(os.devnull, "wb") as null:  # noqa: PTH123 - a device
            held.enter_context(reading(checkpoint.path))
            nowhere = null.fileno()  # for its reports; retention keeps off by `held`, not by the guard's lock
            guard = subprocess.Popen(
                guard_command(self.command, lock_fd=nowhere, report_fd=nowhere, stop_time_s=GRACE_S),
                env=child_environment({**words, "STOKER_RUN": self.run.pipeline.train.run}),
                stdin=subprocess.DEVNULL,
                stdout=2,  # the daemon's log
                pass_fds=(nowhere,),
                start_new_session=True,
            )
            held.callback(guard.wait)
            held.callback(guard.kill)
            pidfd = os.pidfd_open(guard.pid)
            held.callback(os.close, pidfd)
            self._running = Running(guard, pidfd, checkpoint, held.pop_all(), time.monotonic())
            self.run.context.waiter.add_fd(pidfd, "hook")

    def _look_at(self, running: Running) -> None:
        if readable(running.pidfd, timeout_s=0.0):
            self._ended(running)
        elif not running.is_late:
            running.is_late = time.monotonic() - running.began >= self.run.pipeline.train.on_checkpoint_limit
            if running.is_late:
                running.guard.terminate()

    def _ended(self, running: Running) -> None:
        """Records the end of a command; a failure changes nothing for the checkpoint and for training."""
        run, seconds = self.run, time.monotonic() - running.began
        code = self._forget(running)
        result = "timed_out" if running.is_late else "failed" if code else "ok"
        run.counted.hooks[result] += 1
        run.timings.hook.observe(seconds)
        self._done = running.checkpoint.digest
        facts = {"step": running.checkpoint.step, "result": result, "seconds": round(seconds, 3)}
        body: Mapping[str, Any] = {"v": 1, "digest": self._done, **facts, "time": utc_now()}
        with contextlib.suppress(StorageError):  # then a restart runs it once more
            write_record(run.layout.hook, body)
        if result != "ok":
            how = (
                f"killed by {signal_name(code - 128)}" if code > 128 else f"exit code {code}"
            )  # as a guard has it
            message = f"{how} after {seconds:.0f} s; it is not tried again for this checkpoint"
            run.events.record("hook_failed", **facts, command=list(self.command), message=message)

    def _forget(self, running: Running) -> int:
        """Reaps the guard, ended or not; returns its exit code."""
        self.run.context.waiter.remove_fd(running.pidfd)
        running.held.close()
        self._running = None
        return running.guard.wait()
