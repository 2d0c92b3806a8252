"""A launch as data: launch.json, the command and the environment a trainer gets."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import DatasetPin
from stoker.store.files import canonical_json
from stoker.store.layout import RunLayout
from stoker.supervise.run.record import Identity, RunRecord

TRAINER = (sys.executable, "-m", "stoker.training.trainer")


@dataclass(frozen=True)
class Launch:
    """One launch of a run: its id, where it resumes from (None: the beginning) and on which timeline."""

    launch: str
    timeline: int
    resume_from: Path | None
    resume_step: int
    notify_socket: Path
    until: int | None = None  # a step to stop at, before the horizon


def launch_body(
    launch: Launch, pipeline: Pipeline, pin: DatasetPin, record: RunRecord, *, steps: int | None = None
) -> dict[str, Any]:
    """launch.json's body: all the trainer needs besides the plan and the checkpoint it resumes from.

    `steps` is the horizon seen from where it resumes (default: as configured). `seq_len` is the configured
    one; what is read has that of its plan entry, and the held-out windows have their own.
    """
    train, identity, held = pipeline.train, record.identity, record.heldout
    model = train.model.model_dump(mode="json")
    layout = pipeline.layout.run(identity.run)
    return {
        "v": 1,
        "launch": launch.launch,
        "run": identity.run,
        "run_id": identity.run_id,
        "pipeline": pipeline.name,
        "timeline": launch.timeline,
        "config_digest": config_digest(identity, model, train.optimizer.name),
        "seed": identity.seed,
        "steps": train.horizon if steps is None else steps,
        "until": launch.until,
        "seq_len": train.seq_len,
        "global_batch": train.global_batch,
        "model": model,
        "optimizer": train.optimizer.model_dump(mode="json"),
        "schedule": train.schedule.model_dump(mode="json"),
        "evaluate": train.evaluate.model_dump(mode="json"),
        "precision": train.precision,
        "deterministic": train.deterministic,
        "micro_batch": None if train.micro_batch == "auto" else train.micro_batch,
        "threads": len(os.sched_getaffinity(0)),  # the cores this process may use
        "checkpoint": {"every_s": train.checkpoint.every, "every_steps": train.checkpoint.every_steps},
        "shards_root": str(pipeline.hot_layout.shards(identity.dataset)),
        "tokenizer_file": str(pipeline.layout.datasets / pin.tokenizer.file),
        "vocab_size": identity.vocab_size,
        "dtype": identity.dtype,
        "eot": pin.tokenizer.eot,
        "heldout": held
        and {
            "file": str(layout.heldout),
            "sha256": held.sha256,
            "windows": held.windows,
            "seq_len": identity.seq_len,
        },
        "log_every": 1,
        "run_record": record.for_checkpoints(),
    }


def config_digest(identity: Identity, model: Mapping[str, Any], optimizer: str) -> str:
    """64 hex digits over what a checkpoint must share with the launch that resumes from it.

    The horizon, the batch, the learning rate and the like may be changed at any checkpoint, the sequence
    length at any entry of the plan.
    """
    told = {
        "run_id": identity.run_id,
        "seed": identity.seed,
        "build_id": identity.build_id,
        "tokenizer_sha256": identity.tokenizer_sha256,
        "model": model,
        "optimizer": optimizer,
    }
    return hashlib.sha256(canonical_json(told)).hexdigest()


def trainer_environment(environ: Mapping[str, str], launch: Launch, layout: RunLayout) -> dict[str, str]:
    """The trainer's environment: ours, without what is meant for us alone, and the protocol's variables."""
    kept = {name: value for name, value in environ.items() if name not in OURS}
    return {
        **kept,
        "PYTHONSAFEPATH": "1",  # a file in the working directory must not stand in for a module
        "STOKER_NOTIFY_SOCKET": str(launch.notify_socket),
        "STOKER_LAUNCH": launch.launch,
        "STOKER_RUN_DIR": str(layout.root),
        "STOKER_RESUME_FROM": str(launch.resume_from or ""),
        "STOKER_PLAN": str(layout.plan),
        "STOKER_TIMELINES": str(layout.timelines),
    }


# A trainer that found these would speak to systemd, or to `stoker run`, in the supervisor's name.
OURS = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "STOKER_READY_FD"})
