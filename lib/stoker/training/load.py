"""Builds the training of a launch: device, batches, model and optimizer, restored from its checkpoint."""

from __future__ import annotations

from dataclasses import replace

import torch

from stoker.checkpoints.handover import Sealer
from stoker.plan.timelines import Timelines, ancestry, read_timelines, skips
from stoker.store.errors import DataError
from stoker.store.log import GENESIS
from stoker.supervise.run.metrics_log import MetricsLog
from stoker.training import state
from stoker.training.data.batches import Batches
from stoker.training.ema import Average
from stoker.training.evaluate import open_heldout
from stoker.training.launch import Launch
from stoker.training.loop import Training
from stoker.training.model.attention import DocumentMask
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize
from stoker.training.numerics import Numerics, resolve
from stoker.training.protocol import Protocol, Stop
from stoker.training.state import Progress, SavedState
from stoker.training.steps import device
from stoker.training.steps.device import Compute
from stoker.training.steps.muon import Muon
from stoker.training.steps.optimizer import AdamW
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
    saved = None if launch.resume_from is None else state.read_checkpoint(launch.resume_from, launch)
    progress = Progress() if saved is None else saved.progress
    batches = _batches(launch, timelines, progress, saved)
    model = _model(launch, numerics, batches)
    if saved is None and launch.origin is not None:
        state.take_parameters(launch.origin, model)
    elif saved is None:
        initialize(model, launch.seed)
    model.to(compute.device)
    optimizer = _optimizer(launch, numerics, model)
    if saved is not None:
        state.restore(saved, model, optimizer)
    average = Average(model, saved, launch.ema) if launch.ema else None
    training = Training(
        launch,
        _with_a_micro_batch_that_fits(launch, numerics, model, compute),
        model,
        optimizer,
        compute,
        progress,
        batches,
        heldout=open_heldout(launch.heldout, launch.dtype) if launch.heldout else None,
        heldouts={one.name: open_heldout(one, launch.dtype) for one in launch.heldouts},
        metrics=MetricsLog(
            launch.layout.metrics, history=ancestry(timelines, launch.timeline), resume_step=progress.step
        ),
        protocol=protocol,
        stop=stop,
        sealer=sealer,
        average=average,
    )
    training.compile()
    return training


def _batches(launch: Launch, timelines: Timelines, progress: Progress, saved: SavedState | None) -> Batches:
    batches = Batches(
        launch.plan,
        launch.shards_root,
        position=progress.position,
        size=launch.global_batch,
        vocab_size=launch.vocab_size,
        skips=skips(timelines, launch.timeline),
    )
    if saved is not None and saved.body["plan_head"] not in (GENESIS, *batches.plan.hashes):
        raise DataError(
            f"{launch.plan} does not continue the plan that {saved.directory} was trained by (its head is "
            f"{saved.body['plan_head']}); put back the copy in that checkpoint"
        )
    return batches


def _model(launch: Launch, numerics: Numerics, batches: Batches) -> Model:
    """Returns the model with its options, its parameters not yet set."""
    context = max(launch.seq_len, launch.heldout.seq_len if launch.heldout else 0)
    # Rotary tables for every length: of planned entries, of future entries, of the held-out windows.
    longest = max(context, batches.longest)
    # A plan may have windows of the phases before and after this one. In a run without phases other lengths
    # are of a change by hand; its models have always had the longest.
    seq_len = longest if launch.phase is None else context
    described = {**launch.model, "rope": launch.rope}
    model = Model(Shape.parse(described, vocab_size=launch.vocab_size, seq_len=seq_len), longest)
    model.loss_chunk = numerics.loss_chunk
    model.recompute = numerics.recompute == "blocks"
    if model.shape.document_mask:
        model.mask = DocumentMask(launch.eot, varlen=numerics.attention == "varlen_documents")
    return model


def _optimizer(launch: Launch, numerics: Numerics, model: Model) -> AdamW:
    parameters, decay = model.named_parameters(), launch.optimizer["weight_decay"]
    betas = (launch.optimizer["betas"][0], launch.optimizer["betas"][1])
    if numerics.optimizer == "muon":
        return Muon(parameters, model.shape, betas=betas, weight_decay=decay)
    return AdamW(parameters, betas=betas, weight_decay=decay)


def _with_a_micro_batch_that_fits(
    launch: Launch, numerics: Numerics, model: Model, compute: Compute
) -> Numerics:
    """Returns the numerics; finds the micro-batch by a trial where neither launch nor run has one."""
    if launch.micro_batch is not None or "micro_batch" in (launch.numerics or {}):
        return numerics
    fits = fitting(
        model, numerics.micro_batch, global_batch=launch.global_batch, length=launch.seq_len, compute=compute
    )
    return replace(numerics, micro_batch=fits)
