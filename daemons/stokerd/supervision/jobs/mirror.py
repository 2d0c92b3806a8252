"""Jobs on the mirror of checkpoints: their tasks, and what their results make true.

A failure on warm never stops training: it is an event, a line in the status, and another try, without limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored
from stoker.plan.timelines import parse_timelines, restore_timelines
from stoker.store.errors import DataError
from stoker.store.log import read_log
from stoker.supervise import actions as do
from stoker.supervise.mirror.inventory import PRUNE_AGAIN_S, MirrorState
from stokerd.supervision.run import Run

MIRROR = do.MirrorJob.slot
Result = Mapping[str, Any]


def mirror_of(run: Run) -> MirrorState:
    """Returns the mirror's state, which every run with jobs on warm has."""
    assert run.mirror is not None
    return run.mirror


def mirror_task(run: Run, job: do.MirrorJob) -> dict[str, Any]:
    assert run.pipeline.warm_layout is not None
    logs = list(map(str, (run.layout.metrics, run.layout.launches, run.layout.runs)))
    words: dict[str, Any] = {}
    match job:
        case do.ListMirror():
            words = {"run_id": run.run_id(or_of_newest=job.need != "no")}
        case do.CopyToMirror(copy=copy):
            held, name = run.store.begun.heldout, checkpoint_name(copy.step)
            checkpoint = run.checkpoints.get(name)
            words = {
                "source": str(run.checkpoints.path(name)),
                "name": copy.name,
                "digest": checkpoint.digest if checkpoint is not None else "",
                "heldout": {"path": str(run.layout.heldout), "sha256": held.sha256} if held else None,
                "logs": {"run_id": run.run_id(), "paths": logs},
            }
        case do.PruneMirror(names=names):
            words = {"names": list(names)}
        case do.FetchCopy(copy=copy):
            words = {"name": copy.name, "checkpoints": str(run.layout.checkpoints), "logs": logs}
            words |= {"heldout": str(run.layout.heldout)}
    return {
        "verb": job.kind,
        "warm": str(run.pipeline.warm_layout.root),
        "run": run.pipeline.train.run,
        "owner": run.pipeline.name,
        "expected": bool(mirror_of(run).copies),  # a mirror that held copies must still exist
        **words,
    }


def mirror_ended(run: Run, job: do.MirrorJob, result: Result | None, reason: str) -> None:
    """Records the result of a job on warm, which ends an earlier failure, or the reason why it has none."""
    if result is None:
        _failed(run, job, reason)
        return
    if "source_bad" not in result and mirror_of(run).worked(job.kind):
        run.events.record("mirror_recovered", doing=job.kind)
    match job:
        case do.ListMirror():
            _listed(run, job, result)
        case do.CopyToMirror(copy=copy):
            _copied(run, copy, result)
        case do.PruneMirror():
            _pruned(run, result["gone"])
        case do.FetchCopy():
            _fetched(run, job, result)


def _failed(run: Run, job: do.MirrorJob, reason: str) -> None:
    """Records that warm cannot be used now; a job with need "wait" is repeated, a "try" is given up."""
    mirror, newest, now = mirror_of(run), run.newest, time.monotonic()
    run.counted.mirror_failures += 1
    if mirror.failed(job.kind, reason, now):
        run.events.record("mirror_failed", doing=job.kind, reason=reason)
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
        doing = f"waiting for warm, which may hold a newer checkpoint ({has}): {reason}; trying"
        run.state = run.state.paused(mirror.retry_at - now, doing, now)
        run.change(is_warm_awaited=True)


def _listed(run: Run, job: do.ListMirror, result: Result) -> None:
    mirror, warm, foreign = mirror_of(run), run.pipeline.warm_layout, result["foreign"]
    if run.run_id(or_of_newest=True) is None and len(foreign) > 1:
        place = warm.checkpoints(run.pipeline.train.run) if warm else ""
        raise DataError(
            f"{place} holds checkpoints of the runs {', '.join(foreign)}, and "
            f"{run.layout.record} is missing; move away those that the run must not continue from"
        )
    mirror.looked([Mirrored.parse(copy) for copy in result["copies"]], time.monotonic())
    if job.need == "no":
        return
    run.change(look="done", is_warm_awaited=False)
    if result["timelines"] is not None:  # no trainer runs now
        lines = read_log(result["timelines"].encode())
        if lost := restore_timelines(run.layout.timelines, parse_timelines(lines, "the mirror's timelines")):
            run.events.record("run_file_restored", what="timelines", forks=lost, source="mirror")


def _copied(run: Run, copy: Mirrored, result: Result) -> None:
    name = checkpoint_name(copy.step)
    if reason := result.get("source_bad"):
        run.checkpoints.forget(name)
        run.change(proofs={one: run.state.proofs[one] for one in run.state.proofs if one != name})
        words = {"path": f"checkpoints/{name}", "reason": reason}
        run.events.record("mirror_source_differs", **words)
        return
    mirror_of(run).copied(copy)
    run.events.record("checkpoint_mirrored", step=copy.step, path=f"checkpoints/{name}", copy=copy.name)
    if result["replaced"]:
        run.events.record("mirror_copy_bad", copy=copy.name, replaced=True)


def _pruned(run: Run, names: list[str]) -> None:
    mirror = mirror_of(run)
    mirror.gone(names)
    mirror.prune_at = 0.0 if names else time.monotonic() + PRUNE_AGAIN_S
    if names:
        run.events.record("mirror_pruned", names=names)


def _fetched(run: Run, job: do.FetchCopy, result: Result) -> None:
    """Records that a copy is back among the checkpoints and proven, or was proven wrong, or is gone."""
    copy = job.copy
    if result["state"] != "fetched":
        mirror_of(run).gone([copy.name])
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
