"""The supervisor's kinds of jobs: the worker's module and task, and what the end of a job makes true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored
from stoker.kit.workers.parent import WorkerExit
from stoker.supervise import actions as do
from stoker.supervise.run.record import Heldout
from stokerd.supervision.data import ANOTHER
from stokerd.supervision.run import Run

PROOF_S = 300.0  # a worker that read nothing for so long hangs in a mount that does not answer
BESIDE_S = 120.0  # 64 MB and their fsync take less on any disk worth mirroring to
TRY_S, LOOK_S, FETCH_S = 15.0, 60.0, 300.0  # a launch waits for these

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Activity:
    """All there is to know of a kind of job: `task` for the worker, `done` with its result."""

    module: str
    task: Callable[[Run, Any], dict[str, Any]]
    done: Callable[[Any, Result], do.Action]
    silent_s: Callable[[Any], float] = lambda job: PROOF_S


def on_end(job: do.Job, end: WorkerExit) -> do.Action:
    """What the end of a job makes true."""
    return failed(job, end.reason()) if end.result is None else ACTIVITIES[type(job)].done(job, end.result)


def failed(job: do.Job, reason: str) -> do.Action:
    """What a job that came to nothing makes true: it says nothing against what it looked at."""
    match job:
        case do.ProveCheckpoint(name):
            return do.CheckpointProved(name, "unreadable", f"no proof: {reason}")
        case do.ProveSets(sets):
            return do.SetsProved(sets, dict.fromkeys(sets, f"not proven: {reason}"))
        case do.MirrorJob():
            return do.MirrorFailed(job, reason)
        case do.CopyHeldout():
            return do.HeldoutCopied(problem=reason)
        case _:
            assert_never(job)


def _checkpoint_task(run: Run, job: do.ProveCheckpoint) -> dict[str, Any]:
    return {"checkpoint": str(run.checkpoints.path(job.name))}


def _checkpoint_proved(job: do.ProveCheckpoint, result: Result) -> do.Action:
    return do.CheckpointProved(job.name, *(result[name] for name in ("verdict", "reason", "body", "digest")))


def _sets_task(run: Run, job: do.ProveSets) -> dict[str, Any]:
    return {"sets": [{"path": run.data.path(key), "key": key} for key in job.sets]}


def _sets_proved(job: do.ProveSets, result: Result) -> do.Action:
    wrong = {}
    for (key, digest), proof in zip(job.sets.items(), result["proofs"], strict=True):
        why = "" if proof["verdict"] == "proven" else f"{proof['verdict']}: {proof['reason']}"
        if not why and proof["manifest_sha256"] != digest:
            why = f"{ANOTHER} is {proof['manifest_sha256']}, recorded is {digest}"
        wrong[key] = why
    return do.SetsProved(job.sets, wrong)


def _heldout_task(run: Run, job: do.CopyHeldout) -> dict[str, Any]:
    train = run.pipeline.train
    return {
        "shards_root": str(run.pipeline.hot_layout.shards(run.pipeline.dataset.name)),
        "sets": [list(pair) for pair in job.sets.items()],
        "seq_len": train.seq_len,
        "vocab_size": job.vocab_size,
        "tokens": train.evaluate.tokens,
        "target": str(run.layout.heldout),
    }


def _heldout_copied(_: do.CopyHeldout, result: Result) -> do.Action:
    held = Heldout(result["sha256"], result["windows"], result["dtype"], result["tokens"])
    return do.HeldoutCopied(held if held.windows else None)  # val data may be shorter than a window


def _mirror_task(run: Run, job: do.MirrorJob, **words: Any) -> dict[str, Any]:
    assert run.pipeline.warm_layout is not None and run.mirror is not None
    return {
        "verb": job.kind,
        "warm": str(run.pipeline.warm_layout.warm),
        "run": run.pipeline.train.run,
        "owner": run.pipeline.name,
        "expected": bool(run.mirror.copies),  # something was mirrored before
        **words,
    }


def _list_task(run: Run, job: do.ListMirror) -> dict[str, Any]:
    return _mirror_task(run, job, run_id=run.run_id(or_of_newest=job.is_awaited))


def _listed(job: do.ListMirror, result: Result) -> do.Action:
    copies = tuple(Mirrored.parse(copy) for copy in result["copies"])
    return do.MirrorListed(copies, tuple(result["foreign"]), result["timelines"], job.is_awaited)


def _copy_task(run: Run, job: do.CopyToMirror) -> dict[str, Any]:
    path = run.checkpoints.path(checkpoint_name(job.copy.step))
    checkpoint = run.checkpoints.get(path.name)
    held = run.store.begun.heldout
    return _mirror_task(
        run,
        job,
        source=str(path),
        name=job.copy.name,
        digest=checkpoint.digest if checkpoint is not None else "",
        heldout={"path": str(run.layout.heldout), "sha256": held.sha256} if held else None,
        logs={"run_id": run.run_id(), "paths": run.logs()},
    )


def _copied(job: do.CopyToMirror, result: Result) -> do.Action:
    if "source_bad" in result:
        return do.SourceDiffers(checkpoint_name(job.copy.step), result["source_bad"])
    return do.CopyMade(job.copy, result["set_aside"])


def _fetch_task(run: Run, job: do.FetchCopy) -> dict[str, Any]:
    checkpoints = str(run.layout.checkpoints)
    return _mirror_task(run, job, name=job.copy.name, checkpoints=checkpoints, logs=run.logs())


def _fetched(job: do.FetchCopy, result: Result) -> do.Action:
    if result["state"] != "fetched":
        return do.CopyBad(job.copy.name, result["state"], result["reason"], result["set_aside"])
    proof = result["proof"]
    return do.CopyFetched(job, proof["body"], proof["digest"], tuple(result["logs"]))


def _restore_task(run: Run, job: do.RestoreHeldout) -> dict[str, Any]:
    return _mirror_task(run, job, path=str(run.layout.heldout), sha256=job.sha256)


def _look_s(job: do.ListMirror) -> float:
    return LOOK_S if job.must else TRY_S if job.is_awaited else BESIDE_S


_MIRROR = "stoker.checkpoints.mirror.mirror_worker"
ACTIVITIES: dict[type[do.Job], Activity] = {
    do.ProveCheckpoint: Activity("stoker.checkpoints.proof_worker", _checkpoint_task, _checkpoint_proved),
    do.ProveSets: Activity("stoker.shards.format.proof_worker", _sets_task, _sets_proved),
    do.CopyHeldout: Activity("stoker.plan.heldout_worker", _heldout_task, _heldout_copied),
    do.ListMirror: Activity(_MIRROR, _list_task, _listed, _look_s),
    do.CopyToMirror: Activity(_MIRROR, _copy_task, _copied, lambda job: BESIDE_S),
    do.PruneMirror: Activity(
        _MIRROR,
        lambda run, job: _mirror_task(run, job, names=list(job.names)),
        lambda job, result: do.CopiesPruned(tuple(result["gone"])),
        lambda job: BESIDE_S,
    ),
    do.FetchCopy: Activity(_MIRROR, _fetch_task, _fetched, lambda job: FETCH_S),
    do.RestoreHeldout: Activity(
        _MIRROR,
        _restore_task,
        lambda job, result: do.HeldoutRestored(result["heldout"]),
        lambda job: LOOK_S,
    ),
}
