"""The commands of train.on_checkpoint and train.on_promoted, which run beside training.

Of each, one runs at a time: for the newest proven checkpoint, or for the one that promoted.json names. Those
proven or promoted meanwhile are passed over. Its last end is recorded, so a restart repeats only what did
not end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker.kit.exec import child_environment
from stoker.kit.process import signal_name
from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import StorageError
from stoker.store.record import read_or_set_aside, utc_now, write_record
from stoker.supervise.actions import Job
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.base import RunActivity, Slice
from stokerd.supervision.run import Run

LIMIT_S = 3600.0
GRACE_S = 4.0  # from TERM to KILL: less than a worker has where its daemon stops
RESULTS = ("ok", "failed", "timed_out")


@dataclass
class Ended:
    digest: str | None  # of the checkpoint that a command last ended for


def _promoted(run: Run) -> Checkpoint | None:
    """Returns the checkpoint that is promoted, once it is proven here."""
    promoted = run.promoted()
    found = run.checkpoints.get(promoted.get("checkpoint", ""))
    return found if found is not None and found.digest == promoted.get("digest") else None


@dataclass(frozen=True)
class Hook:
    """A command of `train.<key>` for the checkpoint that `subject` finds; `kind` names job and record."""

    kind: str
    key: str
    subject: Callable[[Run], Checkpoint | None]

    def activity(self) -> RunActivity:
        return RunActivity(
            kind=self.kind,
            module="stoker.supervise.run.hook_worker",
            silent_s=math.inf,  # the worker ends a command whose time is over
            shares_stderr=True,
            task=self._task,
            on_end=self._on_end,
            due=self._due,
            awaited_in=(Phase.FINISHED,),
            ends_in=(),
            slices=(self._ended,),
        )

    @property
    def _ended(self) -> Slice[Ended]:
        return Slice(self.kind, self._read)

    def _read(self, run: Run) -> Ended:
        last = read_or_set_aside(run.layout.hook(self.kind), run.pipeline.layout.quarantine) or {}
        return Ended(last.get("digest"))

    def _due(self, run: Run) -> Iterator[Checkpoint]:
        if not run.pipeline.train.hook(self.key) or run.context.stopping:
            return
        found = self.subject(run)
        if found is not None and found.digest != self._ended.of(run).digest:
            yield found

    def _task(self, run: Run, job: Job) -> dict[str, Any]:
        words = {"STOKER_CHECKPOINT": str(job.subject.path), "STOKER_STEP": str(job.subject.step)}
        return {
            "command": run.pipeline.train.hook(self.key),
            "environ": child_environment({**words, "STOKER_RUN": run.pipeline.train.run}),
            "checkpoint": str(job.subject.path),
            "grace_s": GRACE_S,
            "limit_s": LIMIT_S,
        }

    def _on_end(self, run: Run, job: Job, end: WorkerExit) -> None:
        """Records the end of a command; a failure changes nothing for the checkpoint and for training."""
        if end.result is None and end.signal is None:
            return  # it could not begin, and is due again
        found = end.result or {"code": 128 + (end.signal or 0), "is_late": False}
        code, seconds, command = found["code"], end.wall_s, list(run.pipeline.train.hook(self.key))
        result = "timed_out" if found["is_late"] else "failed" if code else "ok"
        run.counted.hooks[result] += 1
        run.timings.hook.observe(seconds)
        self._ended.of(run).digest = job.subject.digest
        facts = {"step": job.subject.step, "result": result, "seconds": round(seconds, 3)}
        with contextlib.suppress(StorageError):  # then a restart runs it once more
            record = {"v": 1, "digest": job.subject.digest, **facts, "time": utc_now()}
            write_record(run.layout.hook(self.kind), record)
        if result != "ok":
            # Above 128 it is a signal, as a guard has it.
            how = f"killed by {signal_name(code - 128)}" if code > 128 else f"exit code {code}"
            message = f"{how} after {seconds:.0f} s; it is not tried again for this checkpoint"
            words = {"key": f"train.{self.key}", "command": command, "message": message}
            run.events.record("hook_failed", **facts, **words)


HOOK = Hook("hook", "on_checkpoint", lambda run: run.newest).activity()
HOOK_PROMOTED = Hook("hook-promoted", "on_promoted", _promoted).activity()
