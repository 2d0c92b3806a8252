"""Warnings about a valid configuration: too little data for the steps, months of training.

All figures are estimates and never a reason to refuse. Each warning names its assumptions.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from stoker.cli.options import plural
from stoker.cli.pipeline.beside import whole_run
from stoker.config.checks import Fault, vocabulary
from stoker.config.schema import Pipeline
from stoker.config.units import format_count
from stoker.corpus.readers.table import READERS
from stoker.supervise.run.gates import DataInView, gate_wants, start_gate

CORE_FLOPS, GPU_FLOPS = 30e9, 100e12  # sustained while training: 32-bit on a core, bfloat16 on a large GPU
LONG_DAYS = 60
TEXT_BYTES_A_TOKEN, FEW_IDS, FEWER_BYTES_A_TOKEN = 4, 8192, 2  # of text; a small vocabulary has short tokens


def of_text(pipeline: Pipeline, files: int, text_bytes: float) -> DataInView:
    """Returns the estimated data of that many files with that much text, within dataset.limit."""
    each = TEXT_BYTES_A_TOKEN if vocabulary(pipeline) >= FEW_IDS else FEWER_BYTES_A_TOKEN
    each = each if pipeline.dataset.tokens_column is None else 1  # the survey counted tokens
    limit, ratio = pipeline.dataset.limit, pipeline.shard.val_ratio
    sets = min(files, limit.files or files)
    tokens = int(text_bytes / each * sets / files)
    tokens = min(tokens, limit.tokens or tokens)
    val = int(tokens * ratio)
    return DataInView(sets, tokens - val, val, complete=False)


def disappointments(pipeline: Pipeline, whole: DataInView | None, days: float) -> list[Fault]:
    """Returns warnings for that many days of training and for the data that the run will get.

    `whole` is the published data if it is `complete`, else an estimate, or None where no estimate exists.
    """
    found = [*_other_files(pipeline)]
    if whole is not None:
        found += [*_late_start(pipeline, whole), *_short_data(pipeline, whole)]
    if days >= LONG_DAYS:
        size, tokens = format_count(parameters(pipeline)), format_count(_tokens(pipeline))
        machine = f"{CORE_FLOPS / 1e9:.0f} GFLOP/s for each of {_cores()} cores (no GPU is visible)"
        machine = f"{GPU_FLOPS / 1e12:.0f} TFLOP/s of one GPU" if _has_gpu() else machine
        why = f"{size} parameters and {tokens} tokens take about {days:,.0f} days here, at {machine}"
        found.append(Fault(("train", "model"), f"{why}; choose a smaller model, or fewer steps"))
    return found


def _tokens(pipeline: Pipeline) -> int:
    return whole_run(pipeline)[1]


def _other_files(pipeline: Pipeline) -> Iterator[Fault]:
    for glob in pipeline.dataset.source.include:
        suffix = PurePosixPath(glob).suffix
        if suffix[1:].isalnum() and suffix not in READERS:
            can = " and ".join(reader[1:] for reader in READERS)
            why = f"{glob!r} takes files that end in {suffix}: only {can} can be read"
            yield Fault(("dataset", "source", "include"), f"{why}, the rest is quarantined")


def _late_start(pipeline: Pipeline, whole: DataInView) -> Iterator[Fault]:
    wants = gate_wants(pipeline)
    gate = start_gate(whole, wants)
    if gate.state == "hopeless":
        yield Fault(("train", "start_when"), gate.why)
    if gate.state != "closed":
        return
    held = f" and {format_count(wants.heldout_tokens)} held-out tokens" if wants.heldout_tokens else ""
    yield Fault(
        ("train", "start_when"),
        f"asks for {wants.sets} shard sets, {format_count(wants.train_tokens)} training tokens{held}; "
        f"{_told(whole)}. The run begins only when every file is done; lower "
        f"it{', or train.evaluate.tokens,' if held else ''} to begin earlier",
    )


def _short_data(pipeline: Pipeline, whole: DataInView) -> Iterator[Fault]:
    epochs, (steps, tokens) = pipeline.plan.epochs, whole_run(pipeline)
    if epochs is None or tokens <= (there := whole.train_tokens * epochs):
        return
    left = pipeline.train.tokens_of  # a step of a later phase may take more
    end = bisect_right(range(steps), there, key=lambda step: tokens - left(step, steps)) - 1
    last = plural(epochs, "epoch") + f" the run ends at about step {end}"
    yield Fault(
        ("plan", "epochs"),
        f"{steps} steps take {format_count(tokens)} tokens, and {_told(whole)}: with "
        f"{last}; raise plan.epochs, or lower train.steps",
    )


def _told(whole: DataInView) -> str:
    train, val = format_count(whole.train_tokens), format_count(whole.val_tokens)
    figures = f"{whole.sets} shard sets, {train} training and {val} held-out tokens"
    return f"the data has {figures}" if whole.complete else f"by its text the source has about {figures}"


def parameters(pipeline: Pipeline) -> int:
    model = pipeline.train.model
    width, head = model.width, model.width // model.heads
    attention = 2 * width * width + 2 * width * model.kv_heads * head
    block = attention + 3 * width * model.ffn_width + 2 * width
    embeddings = vocabulary(pipeline) * width * (1 if model.tie_embeddings else 2)
    return model.layers * block + embeddings + width


def training_days(pipeline: Pipeline) -> float:
    """Returns the days of training here: six operations per parameter and token (Kaplan et al., 2020)."""
    speed = GPU_FLOPS if _has_gpu() else CORE_FLOPS * _cores()
    return 6 * parameters(pipeline) * _tokens(pipeline) / speed / 86_400


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def _cores() -> int:
    return len(os.sched_getaffinity(0))
