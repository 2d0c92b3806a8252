"""Builds the training of a launch: device, batches, model and optimizer, restored from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from stoker.checkpoints.handover import Sealer
from stoker.plan.timelines import ancestry, read_timelines, skips
from stoker.store.errors import DataError
from stoker.store.log import GENESIS
from stoker.training import state
from stoker.training.data.batches import Batches
from stoker.training.evaluate import open_heldout
from stoker.training.launch import Launch
from stoker.training.loop import Training
from stoker.training.metrics_log import MetricsLog
from stoker.training.model.attention import DocumentMask
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize
from stoker.training.numerics import resolve
from stoker.training.protocol import Protocol, Stop
from stoker.training.state import Progress
from stoker.training.steps import device
from stoker.training.steps.device import Compute
from stoker.training.steps.muon import Muon
from stoker.training.steps.optimizer import AdamW, Optimizer
from stoker.training.steps.trial import fitting


def load(launch: Launch, protocol: Protocol, stop: Stop, sealer: Sealer) -> Training:
    """Returns the training of a launch, restored from its checkpoint if the launch has one.

    A launch from step 0 begins with random parameters, or with those of the run's origin. Raises ConfigError
    for a checkpoint of another configuration, DataError for a wrong plan or wrong data.
    """
    place = device.set_up(deterministic=launch.deterministic, threads=launch.threads, seed=launch.seed)
    if not launch.is_replay:
        device.check_card(launch.numerics or {}, place)
    numerics = resolve(launch, place)
    compute = Compute(place, bf16=numerics.precision == "bfloat16")
    torch.backends.cuda.matmul.allow_tf32 = numerics.tf32
    timelines = read_timelines(launch.timelines)
    body: dict[str, Any] | None = None
    if launch.resume_from is not None:
        body = state.read_checkpoint(launch.resume_from, launch)
    batches = Batches(
        launch.plan,
        launch.shards_root,
        position=state.position_of(body),
        size=launch.global_batch,
        vocab_size=launch.vocab_size,
        skips=skips(timelines, launch.timeline),
    )
    if body is not None and body["plan_head"] not in (GENESIS, *batches.plan.hashes):
        raise DataError(
            f"{launch.plan} does not continue the plan that {launch.resume_from} was trained by (its head is "
            f"{body['plan_head']}); put back the copy in that checkpoint"
        )
    # Rotary tables for every length: of planned entries, of future entries, of the held-out windows.
    longest = max(launch.seq_len, batches.longest, launch.heldout.seq_len if launch.heldout else 0)
    model = Model(Shape.parse(launch.model, vocab_size=launch.vocab_size, seq_len=longest))
    model.loss_chunk = numerics.loss_chunk
    if model.shape.document_mask:
        model.mask = DocumentMask(launch.eot, varlen=numerics.attention == "varlen_documents")
    model.recompute = numerics.recompute == "blocks"
    if launch.resume_from is None and launch.origin is not None:
        state.take_parameters(launch.origin, model)
    elif launch.resume_from is None:
        initialize(model, launch.seed)
    model.to(compute.device)
    optimizer = _optimizer(numerics.optimizer, model, launch.optimizer)
    progress = Progress()
    if launch.resume_from is not None and body is not None:
        progress = state.restore(launch.resume_from, body, model, optimizer)
    if launch.micro_batch is None and "micro_batch" not in (launch.numerics or {}):
        fits = fitting(
            model,
            numerics.micro_batch,
            global_batch=launch.global_batch,
            length=launch.seq_len,
            compute=compute,
        )
        numerics = replace(numerics, micro_batch=fits)
    heldout = None
    if launch.heldout is not None:
        heldout = open_heldout(
            launch.heldout.file,
            sha256=launch.heldout.sha256,
            windows=launch.heldout.windows,
            seq_len=launch.heldout.seq_len,
            dtype=launch.dtype,
        )
    history = ancestry(timelines, launch.timeline)
    metrics = MetricsLog(launch.layout.metrics, history=history, resume_step=progress.step)
    training = Training(
        launch,
        numerics,
        model,
        optimizer,
        compute,
        progress,
        batches,
        heldout,
        metrics,
        protocol,
        stop,
        sealer,
    )
    training.compile()
    return training


def _optimizer(kernel: str, model: Model, settings: Mapping[str, Any]) -> Optimizer:
    parameters, decay = model.named_parameters(), settings["weight_decay"]
    betas = (settings["betas"][0], settings["betas"][1])
    if kernel == "muon":
        return Muon(parameters, model.shape, betas=betas, weight_decay=decay)
    return AdamW(parameters, betas=betas, weight_decay=decay)
