"""The proofs of checkpoints and sets, and the copy of held-out windows: their tasks, what results make true.

A worker that ends without a result is no evidence against the files it read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import DataError
from stoker.supervise.actions import Job
from stoker.supervise.decide import READ_AGAIN_S
from stoker.supervise.run.origin import Origin, choose_origin
from stoker.supervise.run.record import Heldout, LaterHeldout
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.base import RunActivity, Slice
from stokerd.supervision.run import Run

PROOF_WORKER = "stoker.checkpoints.proof_worker"
EVERY_S = 1.0  # between two looks for checkpoints to prove
HOLD_OUT_RETRY_S = 10.0


def _proof(end: WorkerExit) -> dict[str, Any]:
    return end.result or {"verdict": "unreadable", "reason": f"no proof: {end.reason()}"}


def _unproven(run: Run) -> Iterator[str]:
    if name := run.checkpoints.unproven(run.accounts.history(), time.monotonic()):
        yield name


def _checkpoint_proved(run: Run, job: Job, end: WorkerExit) -> None:
    """Records the verdict on a checkpoint; moves a checkpoint that is not whole into quarantine."""
    name, now, path = job.subject, time.monotonic(), f"checkpoints/{job.subject}"
    proof = _proof(end)
    run.timings.proof.observe(end.wall_s)
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


CHECKPOINT = RunActivity(
    kind="checkpoint",
    module=PROOF_WORKER,
    is_reusable=True,
    task=lambda run, job: {"checkpoint": str(run.checkpoints.path(job.subject))},
    on_end=_checkpoint_proved,
    due=_unproven,
    due_in=(Phase.TRAINING, Phase.FINISHED),
    every_s=EVERY_S,
    awaited_in=(Phase.FINISHED,),
)


# What a new run begins with, and its held-out windows: known until the run has begun.


def _origin_task(run: Run, job: Job) -> dict[str, Any]:
    pin = run.planner.pin()
    assert pin is not None  # a run begins with one
    return {
        "checkpoint": job.subject,
        "with_model": True,
        "model": run.pipeline.train.model.body(),
        "vocab_size": pin.tokenizer.vocab_size,
        "tokenizer": str(run.pipeline.layout.datasets / pin.tokenizer.file),
    }


def _origin_proved(run: Run, job: Job, end: WorkerExit) -> None:
    """Notes what a new run begins with; a wrong one ends the supervisor with the reason."""
    proof = _proof(end)
    if proof["verdict"] == "invalid":
        where = f"{run.pipeline.file}: train.init_from"
        raise DataError(f"{where}: {job.subject} is not whole: {proof['reason']}; name another")
    if proof["verdict"] == "unreadable":
        doing = f"train.init_from: {job.subject} {proof['reason']}; trying"
        run.state = run.state.paused(READ_AGAIN_S, doing, time.monotonic())
    elif (pin := run.planner.pin()) is not None:
        BEGUN_WITH.of(run).origin = choose_origin(run.pipeline, pin, proof)


def _heldout_task(run: Run, job: Job) -> dict[str, Any]:
    sets, vocab_size, seq_len, phase = job.subject
    return {
        "shards_root": str(run.pipeline.hot_layout.shards(run.pipeline.dataset.name)),
        "sets": [list(pair) for pair in sets.items()],
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "tokens": run.pipeline.train.evaluate.tokens,
        "target": str(run.layout.root / _later_file(phase) if phase else run.layout.heldout),
    }


def _later_file(phase: str) -> str:
    return f"heldout-{phase}.bin"


def _heldout_copied(run: Run, job: Job, end: WorkerExit) -> None:
    """Records the held-out windows; there are none where the val data is shorter than a window."""
    *_, seq_len, phase = job.subject
    if end.result is not None and phase:
        later = LaterHeldout(**end.result, name=phase, file=_later_file(phase), seq_len=seq_len)
        run.store.change(heldouts=(*run.store.begun.heldouts, later))
        return
    if end.result is not None:
        BEGUN_WITH.of(run).heldout = Heldout(**end.result)
        return
    run.events.record("heldout_failed", reason=end.reason())
    doing = "held-out windows could not be copied; trying"
    run.state = run.state.paused(HOLD_OUT_RETRY_S, doing, time.monotonic())


@dataclass
class BegunWith:
    origin: Origin | None = None  # with train.init_from, once proven
    heldout: Heldout | None = None  # once copied; has 0 windows where no held-out text exists


BEGUN_WITH = Slice("begun_with", lambda _: BegunWith(), BegunWith)
ORIGIN = RunActivity(
    kind="origin",
    module="stoker.training.origin_worker",
    is_reusable=True,
    task=_origin_task,
    on_end=_origin_proved,
    slices=(BEGUN_WITH,),
)
HELDOUT = RunActivity(
    kind="heldout", module="stoker.plan.heldout_worker", task=_heldout_task, on_end=_heldout_copied
)


def _sets_proved(run: Run, job: Job, end: WorkerExit) -> None:
    """Records the proofs of shard sets; has a damaged set restored."""
    no_proof = {"verdict": "not proven", "reason": end.reason()}
    proofs = end.result["proofs"] if end.result is not None else [no_proof] * len(job.subject)
    for (key, digest), proof in zip(job.subject.items(), proofs, strict=True):
        if proof["verdict"] != "proven":
            run.data.not_whole(key, f"{proof['verdict']}: {proof['reason']}")
        elif proof["manifest_sha256"] != digest:
            run.data.another(
                key, f"its manifest's sha256 is {proof['manifest_sha256']}, recorded is {digest}"
            )
        elif run.data.whole(key, digest) and run.store.record is not None:
            run.store.fruitful()  # launches that failed because of it no longer count


SETS = RunActivity(
    kind="sets",
    module="stoker.shards.format.proof_worker",
    is_reusable=True,
    task=lambda run, job: {"sets": [{"path": run.data.path(key), "key": key} for key in job.subject]},
    on_end=_sets_proved,
)
