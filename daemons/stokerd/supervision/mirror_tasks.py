"""The mirror's worker, one at a time, in a crew of its own: a warm that hangs holds up nobody else."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any

from stoker.config.schema import Pipeline
from stoker.kit.context import DaemonContext
from stoker.kit.process.process_id import processes_with_environment, signal_process
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.launch import POOL_VARIABLE
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool
from stoker.store.layout import WarmLayout
from stokerd.supervision.cycle import Turns

WORKER = "stoker.checkpoints.mirror.mirror_worker"
SUBJECT = "/mirror"
QUIET_S = 300.0  # 64 MB and their fsync take less on any disk worth mirroring to


class MirrorTasks:
    """Starts the worker with a verb, hears it, and ends it."""

    def __init__(self, context: DaemonContext, warm: WarmLayout, turns: Turns) -> None:
        self.pipeline: Pipeline = context.pipeline
        self.waiter, self.warm = context.waiter, warm
        self.crew_name = f"{context.layout.state}:mirror"
        self.crew = WorkerPool[Any](self.crew_name, context.waiter)
        turns.crews.append(self.crew)
        self.verb = ""  # what it does, or did last
        self.bytes = 0  # done of it
        self.mirror = warm.checkpoints(self.pipeline.train.run)
        self._alone = False
        self._heard_at = 0.0

    @property
    def quiet_s(self) -> float:
        """For how many seconds the worker has said nothing."""
        return time.monotonic() - self._heard_at

    def alone(self) -> bool:
        """Whether the worker of an earlier daemon is gone; it is killed, but may hang in the kernel."""
        if not self._alone:
            left = processes_with_environment(POOL_VARIABLE, self.crew_name)
            for process in left:
                with contextlib.suppress(PermissionError):
                    signal_process(process, signal.SIGKILL)
            self._alone = not left
        return self._alone

    def start(self, verb: str, *, expected: bool, quiet_s: float = QUIET_S, **words: Any) -> None:
        """Start the worker; `expected` is whether something was mirrored before.

        It is killed when it has said nothing for quiet_s seconds.
        """
        task = {
            "verb": verb,
            "warm": str(self.warm.warm),
            "run": self.pipeline.train.run,
            "owner": self.pipeline.name,
            "expected": expected,
            **words,
        }
        self.crew.start(Activity(verb, WORKER, quiet_s), SUBJECT, task, None)
        self.verb, self.bytes, self._heard_at = verb, 0, time.monotonic()

    def hear(self) -> WorkerExit | None:
        """How the worker ended, once; `verb` still says what it did."""
        for _, messages, ended in self.crew.hear():
            self._heard_at = time.monotonic()
            self.bytes += sum(int(message.get("bytes", 0)) for message in messages)
            if ended is not None:
                return ended
        return None

    @property
    def busy(self) -> bool:
        """Whether the worker is at work."""
        return SUBJECT in self.crew

    def cancel(self) -> None:
        """Stop and reap the worker, if one is at work; one that hangs in the kernel is not waited for."""
        for subject in self.crew.busy:
            self.waiter.remove_fd(self.crew[subject].descriptor)
            self._alone = False
        self.crew.stop()
