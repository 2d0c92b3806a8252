"""Jobs on the mirror of checkpoints: their tasks, and what their results make true.

A failure on warm never stops training: it is an event, a line in the status, and another try, without limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored, waiting
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.timelines import parse_timelines, restore_timelines
from stoker.store.errors import DataError
from stoker.store.log import read_log
from stoker.supervise.actions import Job
from stoker.supervise.decide import mirror_job
from stoker.supervise.mirror.inventory import PRUNE_AGAIN_S, MirrorState
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.base import Message, RunActivity
from stokerd.supervision.run import Run

EVERY_S = 1.0  # between two looks for what is to be mirrored


def mirror_of(run: Run) -> MirrorState:
    """Returns the mirror's state, which every run with jobs on warm has."""
    assert run.mirror is not None
    return run.mirror


def _due(run: Run) -> Iterator[Any]:
    """Yields what to sync beside everything, and ends trouble that is over."""
    mirror, now = run.mirror, time.monotonic()
    if mirror is None or run.store.record is None:
        return
    local, history, policy = run.checkpoints.to_mirror(), run.accounts.history(), run.checkpoints.policy
    mirror.waiting = len(waiting(local, mirror.copies, history, policy))
    job = mirror_job(mirror, local, history, policy, now)
    if job is not None:
        yield job.subject
    elif mirror.trouble is not None and now >= mirror.retry_at and "warm" not in run.jobs:
        # The job that failed is no longer needed.
        run.events.record("mirror_recovered", doing=mirror.trouble_doing)
        mirror.worked(mirror.trouble_doing)


def _doing(job: Job) -> str:
    """Returns what a job does, beside the listing that each sync makes."""
    if job.kind == "fetch":
        return "fetch"
    return "copy" if isinstance(job.subject, Mirrored) else "prune" if job.subject else "list"


def _task(run: Run, job: Job, **words: Any) -> dict[str, Any]:
    assert run.pipeline.warm_layout is not None
    return {
        "verb": job.kind,
        "warm": str(run.pipeline.warm_layout.root),
        "run": run.pipeline.train.run,
        "owner": run.pipeline.name,
        "expected": bool(mirror_of(run).copies),  # a mirror that held copies must still exist
        **words,
    }


def _logs(run: Run) -> list[str]:
    return list(
        map(str, (run.layout.metrics, run.layout.launches, run.layout.runs, run.layout.evaluations_log))
    )


def _sync_task(run: Run, job: Job) -> dict[str, Any]:
    words: dict[str, Any] = {"run_id": run.run_id(or_of_newest=job.need != "no"), "copy": None, "prune": []}
    if not isinstance(job.subject, Mirrored):
        return _task(run, job, **words | {"prune": list(job.subject)})
    held, name = run.store.begun.held_files(run.layout), checkpoint_name(job.subject.step)
    checkpoint = run.checkpoints.get(name)
    words["copy"] = {
        "source": str(run.checkpoints.path(name)),
        "name": job.subject.name,
        "digest": checkpoint.digest if checkpoint is not None else "",
        "heldouts": [[str(path), one.sha256] for path, one in held.items()],
        "logs": _logs(run),
    }
    return _task(run, job, **words)


def _fetch_task(run: Run, job: Job) -> dict[str, Any]:
    words = {"checkpoints": str(run.layout.checkpoints), "heldout": str(run.layout.heldout)}
    return _task(run, job, name=job.subject.name, logs=_logs(run), **words)


def _works(run: Run, job: Job) -> MirrorState:
    """Returns the mirror, whose trouble the success of the same activity ends."""
    mirror = mirror_of(run)
    if mirror.worked(doing := _doing(job)):
        run.events.record("mirror_recovered", doing=doing)
    return mirror


def _failed(run: Run, job: Job, end: WorkerExit) -> None:
    """Records that warm cannot be used now; a job with need "wait" is repeated, a "try" is given up."""
    mirror, newest, now, reason = mirror_of(run), run.newest, time.monotonic(), end.reason()
    run.counted.mirror_failures += 1
    if mirror.failed(doing := _doing(job), reason, now):
        run.events.record("mirror_failed", doing=doing, reason=reason)
    if job.need == "try":
        problem = f"the mirror cannot be used now: {reason}; ask again later"
        run.change(look="failed", look_problem=problem)
    elif job.need == "wait":
        has = f"step {newest.step} is the newest proven here" if newest else "nothing is proven here"
        if not run.state.is_warm_awaited:
            message = (
                f"{has}, and warm may hold a newer checkpoint: the run waits for it. If warm is lost for "
                "good, set train.checkpoint.mirror: false and start again"
            )
            run.events.record("mirror_awaited", reason=reason, message=message)
        wait = f"waiting for warm, which may hold a newer checkpoint ({has}): {reason}; trying"
        run.state = run.state.paused(mirror.retry_at - now, wait, now)
        run.change(is_warm_awaited=True)


def _synced(run: Run, job: Job, result: Message) -> None:
    mirror, warm, others = mirror_of(run), run.pipeline.warm_layout, result["foreign"]
    if not result.get("source_bad"):
        _works(run, job)
    if run.run_id(or_of_newest=True) is None and len(others) > 1:
        place = warm.checkpoints(run.pipeline.train.run) if warm else ""
        raise DataError(
            f"{place} holds checkpoints of the runs {', '.join(others)}, and "
            f"{run.layout.record} is missing; move away those that the run must not continue from"
        )
    mirror.listed([Mirrored.parse(copy) for copy in result["copies"]], time.monotonic())
    if isinstance(job.subject, Mirrored):
        _copied(run, job.subject, result)
    elif result["gone"]:
        run.events.record("mirror_pruned", names=result["gone"])
    elif job.subject:  # what is to go is being read
        mirror.prune_at = time.monotonic() + PRUNE_AGAIN_S
    if job.need != "no":
        run.change(look="done", is_warm_awaited=False)
    if job.need != "no" and result["timelines"] is not None:  # no trainer runs now
        lines = read_log(result["timelines"].encode())
        if lost := restore_timelines(run.layout.timelines, parse_timelines(lines, "the mirror's timelines")):
            run.events.record("run_file_restored", what="timelines", forks=lost, source="mirror")


def _copied(run: Run, copy: Mirrored, result: Message) -> None:
    name = checkpoint_name(copy.step)
    if reason := result.get("source_bad"):
        run.checkpoints.forget(name)
        run.change(proofs={one: run.state.proofs[one] for one in run.state.proofs if one != name})
        words = {"path": f"checkpoints/{name}", "reason": reason}
        run.events.record("mirror_source_differs", **words)
        return
    mirror_of(run).proven.add(copy.name)
    run.events.record("checkpoint_mirrored", step=copy.step, path=f"checkpoints/{name}", copy=copy.name)
    if result["replaced"]:
        run.events.record("mirror_copy_bad", copy=copy.name, replaced=True)


def _fetched(run: Run, job: Job, result: Message) -> None:
    """Records that a copy is back among the checkpoints and proven, or was proven wrong, or is gone."""
    copy: Mirrored = job.subject
    mirror = _works(run, job)
    if result["state"] != "fetched":
        mirror.gone(copy.name)
        words = {"state": result["state"], "reason": result["reason"]}
        run.events.record("mirror_copy_bad", copy=copy.name, **words)
        return
    proof, name = result["proof"], checkpoint_name(copy.step)
    words = {"step": copy.step, "path": f"checkpoints/{name}", "copy": copy.name}
    run.events.record("checkpoint_fetched", **words)
    if result["logs"]:
        run.events.record("run_file_restored", what=result["logs"], source="mirror")
    if result["heldout"] == "brought":
        run.events.record("run_file_restored", what="held-out windows", source="mirror")
    elif result["heldout"] in ("missing", "bad"):
        run.events.record("heldout_lost", message=f"the mirror's copy is {result['heldout']} too")
    run.checkpoints.proven(name, proof["body"], proof["digest"])
    if job.need == "try":  # for a rollback: retention must not remove it before the rollback is made
        run.checkpoints.kept.add(name)
    run.change(proofs={**run.state.proofs, name: "proven"}, is_warm_awaited=False)


def _stopped(run: Run) -> None:
    mirror_of(run).look_at = 0.0  # the stopped job may have finished its work: list the mirror again


_row = partial(
    RunActivity,
    module="stoker.checkpoints.mirror.mirror_worker",
    is_reusable=True,
    pool="warm",
    silent_s=60.0,  # a worker copies 64 MB at a time with fsync; any usable disk is faster
    on_end=_failed,
)
# Proving removes the unfinished files of a fetch; a sync goes on meanwhile.
SYNC = _row(
    kind="sync",
    task=_sync_task,
    on_done=_synced,
    on_stop=_stopped,
    due=_due,
    every_s=EVERY_S,
    awaited_in=(Phase.FINISHED,),
    ends_in=(),
)
FETCH = _row(kind="fetch", task=_fetch_task, on_done=_fetched, on_stop=_stopped)
