"""Runs the command of train.on_checkpoint beside training, after a checkpoint is proven.

One command runs at a time, for the newest proven checkpoint: those proven meanwhile are passed over. Its last
end is in hook.json, so a restart repeats only what did not end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.checkpoints.retention import reading
from stoker.kit.exec import child_environment, launch_command
from stoker.kit.process import readable, signal_name
from stoker.store.errors import StorageError
from stoker.store.record import read_or_set_aside, utc_now, write_record
from stoker.supervise.mirror.inventory import Checkpoint
from stokerd.supervision.run import Run

RESULTS = ("ok", "failed", "timed_out")
GRACE_S = 5.0  # from TERM to KILL


@dataclass
class Running:
    """A command at work; `held` keeps retention from its checkpoint, `pidfd` is readable at its end."""

    process: subprocess.Popen[bytes]
    pidfd: int
    checkpoint: Checkpoint
    held: contextlib.ExitStack
    began: float
    term_at: float | None = None  # when its time was over

    def signal(self, signum: signal.Signals) -> None:
        """Sends a signal to the command and what it started, in its process group; before it is reaped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)


class CheckpointHook:
    def __init__(self, run: Run) -> None:
        self.run, self.command = run, run.pipeline.train.hook
        last = read_or_set_aside(run.layout.hook, run.pipeline.layout.quarantine) or {}
        self._done = last.get("digest")  # of the checkpoint that a command last ended for
        self._running: Running | None = None

    @property
    def pids(self) -> set[int]:
        return {self._running.process.pid} if self._running is not None else set()

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
        if (running := self._running) is None:
            return
        running.signal(signal.SIGTERM)
        readable(running.pidfd, timeout_s=GRACE_S)
        self._forget(running)

    def _start(self, checkpoint: Checkpoint) -> None:
        words = {"STOKER_CHECKPOINT": str(checkpoint.path), "STOKER_STEP": str(checkpoint.step)}
        with contextlib.ExitStack() as held:
            held.enter_context(reading(checkpoint.path))
            process = subprocess.Popen(
                launch_command(list(self.command)),
                env=child_environment({**words, "STOKER_RUN": self.run.pipeline.train.run}),
                stdin=subprocess.DEVNULL,
                stdout=2,  # the daemon's log
                start_new_session=True,
            )
            pidfd = os.pidfd_open(process.pid)
            self._running = Running(process, pidfd, checkpoint, held.pop_all(), time.monotonic())
            self.run.context.waiter.add_fd(pidfd, "hook")

    def _look_at(self, running: Running) -> None:
        now = time.monotonic()
        if readable(running.pidfd, timeout_s=0.0):
            self._ended(running)
        elif running.term_at is None:
            if now - running.began >= self.run.pipeline.train.on_checkpoint_limit:
                running.term_at = now
                running.signal(signal.SIGTERM)
        elif now - running.term_at >= GRACE_S:
            running.signal(signal.SIGKILL)

    def _ended(self, running: Running) -> None:
        """Records the end of a command; a failure changes nothing for the checkpoint and for training."""
        run, seconds = self.run, time.monotonic() - running.began
        code = self._forget(running)
        result = "timed_out" if running.term_at is not None else "failed" if code else "ok"
        run.counted.hooks[result] += 1
        run.timings.hook.observe(seconds)
        self._done = running.checkpoint.digest
        facts = {"step": running.checkpoint.step, "result": result, "seconds": round(seconds, 3)}
        body: Mapping[str, Any] = {"v": 1, "digest": self._done, **facts, "time": utc_now()}
        with contextlib.suppress(StorageError):  # then a restart runs it once more
            write_record(run.layout.hook, body)
        if result != "ok":
            how = f"exit code {code}" if code > 0 else f"killed by {signal_name(-code)}"
            message = f"{how} after {seconds:.0f} s; it is not tried again for this checkpoint"
            run.events.record("hook_failed", "warning", **facts, command=list(self.command), message=message)

    def _forget(self, running: Running) -> int:
        """Ends what the command has left behind and reaps it; returns its exit code, or minus the signal."""
        running.signal(signal.SIGKILL)
        code = running.process.wait()
        self.run.context.waiter.remove_fd(running.pidfd)
        os.close(running.pidfd)
        running.held.close()
        self._running = None
        return code
