"""The proofs of checkpoints and sets, and the copy of held-out windows: their tasks, what results make true.

A worker that ends without a result is no evidence against the files it read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.store.errors import DataError
from stoker.supervise import actions as do
from stoker.supervise.decide import READ_AGAIN_S
from stoker.supervise.run.origin import choose_origin
from stoker.supervise.run.record import Heldout
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run

HOLD_OUT_RETRY_S = 10.0

Result = Mapping[str, Any]


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
            path=path,
            reason=proof["reason"],
            moved_to=str(moved.place),
            dropped=list(moved.dropped),
        )
    else:
        run.checkpoints.unreadable(name, now)
        run.events.record("checkpoint_unreadable", path=path, reason=proof["reason"])
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
    run.events.record("heldout_failed", reason=reason)
    doing = "held-out windows could not be copied; trying"
    run.state = run.state.paused(HOLD_OUT_RETRY_S, doing, time.monotonic())
