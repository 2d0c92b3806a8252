"""The command of train.on_checkpoint, which runs beside training after a checkpoint is proven.

One runs at a time, for the newest proven checkpoint: those proven meanwhile are passed over. Its last end is
in hook.json, so a restart repeats only what did not end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
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


def _read(run: Run) -> Ended:
    last = read_or_set_aside(run.layout.hook, run.pipeline.layout.quarantine) or {}
    return Ended(last.get("digest"))


ENDED = Slice("hook", _read)


def _due(run: Run) -> Iterator[Checkpoint]:
    newest, command = run.newest, run.pipeline.train.hook
    if command and newest is not None and newest.digest != ENDED.of(run).digest and not run.context.stopping:
        yield newest


def _task(run: Run, job: Job) -> dict[str, Any]:
    words = {"STOKER_CHECKPOINT": str(job.subject.path), "STOKER_STEP": str(job.subject.step)}
    return {
        "command": run.pipeline.train.hook,
        "environ": child_environment({**words, "STOKER_RUN": run.pipeline.train.run}),
        "checkpoint": str(job.subject.path),
        "grace_s": GRACE_S,
        "limit_s": LIMIT_S,
    }


def _on_end(run: Run, job: Job, end: WorkerExit) -> None:
    """Records the end of a command; a failure changes nothing for the checkpoint and for training."""
    if end.result is None and end.signal is None:
        return  # it could not begin, and is due again
    found = end.result or {"code": 128 + (end.signal or 0), "is_late": False}
    code, seconds, command = found["code"], end.wall_s, list(run.pipeline.train.hook)
    result = "timed_out" if found["is_late"] else "failed" if code else "ok"
    run.counted.hooks[result] += 1
    run.timings.hook.observe(seconds)
    ENDED.of(run).digest = job.subject.digest
    facts = {"step": job.subject.step, "result": result, "seconds": round(seconds, 3)}
    with contextlib.suppress(StorageError):  # then a restart runs it once more
        write_record(run.layout.hook, {"v": 1, "digest": job.subject.digest, **facts, "time": utc_now()})
    if result != "ok":
        # Above 128 it is a signal, as a guard has it.
        how = f"killed by {signal_name(code - 128)}" if code > 128 else f"exit code {code}"
        message = f"{how} after {seconds:.0f} s; it is not tried again for this checkpoint"
        run.events.record("hook_failed", **facts, command=command, message=message)


HOOK = RunActivity(
    kind="hook",
    module="stoker.supervise.run.hook_worker",
    silent_s=math.inf,  # the worker ends a command whose time is over
    shares_stderr=True,
    task=_task,
    on_end=_on_end,
    due=_due,
    awaited_in=(Phase.FINISHED,),
    ends_in=(),
    slices=(ENDED,),
)
