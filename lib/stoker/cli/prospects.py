"""What a right configuration will disappoint with: steps the data does not last for, months of training.

All of it is estimated and never a reason to refuse. The assumptions are said with each estimate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from stoker.config.checks import Fault
from stoker.config.disk import vocabulary
from stoker.config.schema import Pipeline
from stoker.config.units import format_count
from stoker.supervise.asked import gate_wants
from stoker.supervise.gates import DataInView, start_gate

CORE_FLOPS, GPU_FLOPS = 30e9, 100e12  # sustained while training: 32-bit on a core, bfloat16 on a large GPU
LONG_DAYS = 60
TEXT_BYTES_A_TOKEN, FEW_IDS, FEWER_BYTES_A_TOKEN = 4, 8192, 2  # of text; a small vocabulary has short tokens


@dataclass(frozen=True)
class Whole:
    """All that the source will ever give a run, as far as that is known now; `exact` once it is built."""

    data: DataInView
    exact: bool


def of_text(pipeline: Pipeline, files: int, text_bytes: float) -> Whole:
    """What so many files with so much text will become, within dataset.limit."""
    each = TEXT_BYTES_A_TOKEN if vocabulary(pipeline) >= FEW_IDS else FEWER_BYTES_A_TOKEN
    limit, ratio = pipeline.dataset.limit, pipeline.shard.val_ratio
    sets = min(files, limit.files or files)
    tokens = int(text_bytes / each * sets / files)
    tokens = min(tokens, limit.tokens or tokens)
    val = int(tokens * ratio)
    return Whole(DataInView(sets, tokens - val, val, complete=False), exact=False)


def disappointments(pipeline: Pipeline, whole: Whole | None, days: float) -> list[Fault]:
    """What to say of the data as a whole (None: nothing is known of it) and of so many days of training."""
    found = [*_other_files(pipeline)]
    if whole is not None:
        found += [*_late_start(pipeline, whole), *_short_data(pipeline, whole)]
    if days >= LONG_DAYS:
        train = pipeline.train
        tokens = train.horizon * train.global_batch * train.seq_len
        found.append(
            Fault(
                ("train", "model"),
                f"{format_count(parameters(pipeline))} parameters and {format_count(tokens)} tokens take "
                f"about {days:,.0f} days here, at {_machine_told()}; choose a smaller model, or fewer steps",
            )
        )
    return found


def _other_files(pipeline: Pipeline) -> Iterator[Fault]:
    for glob in pipeline.dataset.source.include:
        suffix = PurePosixPath(glob).suffix
        if suffix[1:].isalnum() and suffix != ".parquet":
            yield Fault(
                ("dataset", "source", "include"),
                f"{glob!r} takes files that end in {suffix}: only parquet can be read, the rest is "
                "quarantined",
            )


def _late_start(pipeline: Pipeline, whole: Whole) -> Iterator[Fault]:
    wants = gate_wants(pipeline)
    if start_gate(replace(whole.data, complete=False), wants).state == "open":
        return
    held = f" and {format_count(wants.heldout_tokens)} held-out tokens" if wants.heldout_tokens else ""
    yield Fault(
        ("train", "start_when"),
        f"asks for {wants.sets} shard sets, {format_count(wants.train_tokens)} training tokens{held}; "
        f"{_told(whole)}. The run begins only when every file is done; lower "
        f"it{', or train.evaluate.tokens,' if held else ''} to begin earlier",
    )


def _short_data(pipeline: Pipeline, whole: Whole) -> Iterator[Fault]:
    train, epochs = pipeline.train, pipeline.plan.epochs
    batch = train.global_batch * train.seq_len
    if epochs is None or train.horizon * batch <= (there := whole.data.train_tokens * epochs):
        return
    yield Fault(
        ("plan", "epochs"),
        f"{train.horizon} steps take {format_count(train.horizon * batch)} tokens, and {_told(whole)}: with "
        f"{epochs} epoch{'s' * (epochs > 1)} the run ends at about step {there // batch}; raise plan.epochs, "
        "or lower train.steps",
    )


def _told(whole: Whole) -> str:
    data = whole.data
    figures = (
        f"{data.sets} shard sets, {format_count(data.train_tokens)} training and "
        f"{format_count(data.val_tokens)} held-out tokens"
    )
    return (
        f"the data has {figures}"
        if whole.exact
        else f"the source has about {figures} (by the size of its text)"
    )


def parameters(pipeline: Pipeline) -> int:
    """How many numbers the model has."""
    model = pipeline.train.model
    width, head = model.width, model.width // model.heads
    attention = 2 * width * width + 2 * width * model.kv_heads * head
    block = attention + 3 * width * model.ffn_width + 2 * width
    embeddings = vocabulary(pipeline) * width * (1 if model.tie_embeddings else 2)
    return model.layers * block + embeddings + width


def training_days(pipeline: Pipeline) -> float:
    """How long this machine trains: six operations a parameter and token (Kaplan et al., 2020)."""
    train = pipeline.train
    tokens = train.horizon * train.global_batch * train.seq_len
    speed = GPU_FLOPS if _has_gpu() else CORE_FLOPS * _cores()
    return 6 * parameters(pipeline) * tokens / speed / 86_400


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _machine_told() -> str:
    if _has_gpu():
        return f"{GPU_FLOPS / 1e12:.0f} TFLOP/s of one GPU"
    return f"{CORE_FLOPS / 1e9:.0f} GFLOP/s for each of {_cores()} cores (no GPU is visible)"
