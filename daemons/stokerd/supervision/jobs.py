"""The supervisor's jobs: proofs of checkpoints and sets, the copy of held-out windows, the checkpoint mirror.

Each job has a task for its worker, and a function that records the worker's result. A worker that ends
without a result is no evidence against the files it read. A failure on warm never stops training: it is an
event, a line in the status, and another try, without limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored
from stoker.plan.timelines import parse_timelines, restore_timelines
from stoker.store.errors import DataError
from stoker.store.log import read_log
from stoker.supervise import actions as do
from stoker.supervise.decide import READ_AGAIN_S
from stoker.supervise.mirror.inventory import PRUNE_AGAIN_S, MirrorState
from stoker.supervise.run.origin import choose_origin
from stoker.supervise.run.record import Heldout
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run

HOLD_OUT_RETRY_S = 10.0

Result = Mapping[str, Any]
MIRROR = do.MirrorJob.slot


def checkpoint_task(run: Run, job: do.ProveCheckpoint) -> dict[str, Any]:
    return {"checkpoint": str(run.checkpoints.path(job.name))}


def checkpoint_proved(run: Run, job: do.ProveCheckpoint, result: Result | None, reason: str) -> None:
    """Records the verdict on a checkpoint; moves a checkpoint that is not whole into quarantine."""
    name, now, path = job.name, time.monotonic(), f"checkpoints/{job.name}"
    proof = result or {"verdict": "unreadable", "reason": f"no proof: {reason}"}
    if proof["verdict"] == "proven":
        if run.checkpoints.proven(name, proof["body"], proof["digest"]):
            run.events.record("checkpoint_proven", path=path, step=proof["body"]["step"])
    elif proof["verdict"] == "invalid":
        moved = run.checkpoints.reject(name, proof["reason"])
        run.counted.quarantined += 1
        run.events.record(
            "checkpoint_quarantined",
            "warning",
            path=path,
            reason=proof["reason"],
            moved_to=str(moved.place),
            dropped=list(moved.dropped),
            message="it is not whole and is never resumed from; the one before it is used",
        )
    else:
        run.checkpoints.unreadable(name, now)
        message = "neither trusted nor thrown away, and tried again; look at the disk"
        run.events.record(
            "checkpoint_unreadable", "warning", path=path, reason=proof["reason"], message=message
        )
    if run.state.phase is Phase.PROVING:
        run.change(proofs={**run.state.proofs, name: proof["verdict"]})


def origin_task(_: Run, job: do.ProveOrigin) -> dict[str, Any]:
    return {"checkpoint": job.path, "with_model": True}


def origin_proved(run: Run, job: do.ProveOrigin, result: Result | None, reason: str) -> None:
    """Notes the checkpoint that a new run begins with; a wrong one ends the supervisor with the reason."""
    proof = result or {"verdict": "unreadable", "reason": f"no proof: {reason}"}
    if proof["verdict"] == "invalid":
        raise DataError(
            f"{run.pipeline.file}: train.init_from: {job.path} is not whole: {proof['reason']}; name another"
        )
    if proof["verdict"] == "unreadable":
        doing = f"train.init_from: {job.path} {proof['reason']}; trying"
        run.state = run.state.paused(READ_AGAIN_S, doing, time.monotonic())
    elif (pin := run.planner.pin()) is not None:
        run.change(origin=choose_origin(run.pipeline, pin, proof))


def sets_task(run: Run, job: do.ProveSets) -> dict[str, Any]:
    return {"sets": [{"path": run.data.path(key), "key": key} for key in job.sets]}


def sets_proved(run: Run, job: do.ProveSets, result: Result | None, reason: str) -> None:
    """Records the proofs of shard sets; has a damaged set restored."""
    no_proof = {"verdict": "not proven", "reason": reason}
    proofs = result["proofs"] if result is not None else [no_proof] * len(job.sets)
    for (key, digest), proof in zip(job.sets.items(), proofs, strict=True):
        if proof["verdict"] != "proven":
            run.data.not_whole(key, f"{proof['verdict']}: {proof['reason']}")
        elif proof["manifest_sha256"] != digest:
            run.data.another(
                key, f"its manifest's sha256 is {proof['manifest_sha256']}, recorded is {digest}"
            )
        elif run.data.whole(key, digest) and run.store.record is not None:
            run.store.fruitful()  # launches that failed because of it no longer count


def heldout_task(run: Run, job: do.CopyHeldout) -> dict[str, Any]:
    train = run.pipeline.train
    return {
        "shards_root": str(run.pipeline.hot_layout.shards(run.pipeline.dataset.name)),
        "sets": [list(pair) for pair in job.sets.items()],
        "seq_len": train.seq_len,
        "vocab_size": job.vocab_size,
        "tokens": train.evaluate.tokens,
        "target": str(run.layout.heldout),
    }


def heldout_copied(run: Run, _: do.CopyHeldout, result: Result | None, reason: str) -> None:
    """Records the held-out windows; there are none where the val data is shorter than a window."""
    if result is not None:
        run.change(heldout=Heldout(**result))
        return
    run.events.record("heldout_failed", "warning", reason=reason)
    doing = "held-out windows could not be copied; trying"
    run.state = run.state.paused(HOLD_OUT_RETRY_S, doing, time.monotonic())


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
        message = "training continues; it is tried again until it succeeds"
        run.events.record("mirror_failed", "warning", doing=job.kind, reason=reason, message=message)
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
            run.events.record("mirror_awaited", "warning", reason=reason, message=message)
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
            run.events.record("timelines_restored", "warning", forks=lost, source="mirror")


def _copied(run: Run, copy: Mirrored, result: Result) -> None:
    name = checkpoint_name(copy.step)
    if reason := result.get("source_bad"):
        run.checkpoints.forget(name)
        run.change(proofs={one: run.state.proofs[one] for one in run.state.proofs if one != name})
        words = {"path": f"checkpoints/{name}", "reason": reason}
        message = "it is proven again before anything is made of it"
        run.events.record("mirror_source_differs", "warning", **words, message=message)
        return
    mirror_of(run).copied(copy)
    run.events.record("checkpoint_mirrored", step=copy.step, path=f"checkpoints/{name}", copy=copy.name)
    if result["replaced"]:
        run.events.record("mirror_copy_bad", "warning", copy=copy.name, replaced=True)


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
        run.events.record("mirror_copy_bad", "warning", copy=copy.name, **words)
        return
    proof, name = result["proof"], checkpoint_name(copy.step)
    words = {"step": copy.step, "path": f"checkpoints/{name}", "copy": copy.name}
    message = "it was not whole, or not there, on this disk"
    run.events.record("checkpoint_fetched", "warning", **words, message=message)
    if result["logs"]:
        run.events.record("run_logs_restored", "warning", paths=result["logs"], source="mirror")
    if result["heldout"] == "brought":
        run.events.record("heldout_restored", "warning", source="mirror")
    elif result["heldout"] in ("missing", "bad"):
        run.events.record("heldout_lost", "error", message=f"the mirror's copy is {result['heldout']} too")
    run.checkpoints.proven(name, proof["body"], proof["digest"])
    if job.need == "try":  # for a rollback: retention must not remove it before the rollback is made
        run.checkpoints.kept.add(name)
    run.change(proofs={**run.state.proofs, name: "proven"}, is_warm_awaited=False)


Task = Callable[[Run, Any], dict[str, Any]]
Ended = Callable[[Run, Any, Result | None, str], None]  # gets the result, or None and the reason
ACTIVITIES: Mapping[str, tuple[Task, Ended]] = {  # by slot
    "checkpoint": (checkpoint_task, checkpoint_proved),
    "sets": (sets_task, sets_proved),
    "heldout": (heldout_task, heldout_copied),
    "origin": (origin_task, origin_proved),
    MIRROR: (mirror_task, mirror_ended),
}
