"""Compiles the model's blocks with inductor."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from stoker.training.compile_cache import CompileCache
from stoker.training.launch import Launch
from stoker.training.model.transformer import Model
from stoker.training.numerics import Numerics, machine
from stoker.training.steps.device import Compute
from stoker.training.steps.failures import is_out_of_memory
from stoker.training.steps.memory import windows_a_pass
from stoker.training.steps.trial import made_up_windows

# One size of micro-batch, with and without gradients, is two; each length in the plan has its own.
MOST_GRAPHS = 64


def compile_blocks(
    model: Model, launch: Launch, numerics: Numerics, compute: Compute, *, heldouts: Sequence[Sequence[int]]
) -> CompileCache:
    """Compiles the blocks, which share their code, for steps and for held-out windows of shapes (N, T + 1).

    Returns the cache, sealed. Another size that comes up later, in an entry of another seq_len, is compiled
    at its first call.
    """
    cache = CompileCache(launch.cache, machine(compute.device, numerics.compile))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache.directory / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache.directory / "triton")
    # No pool of processes: a trainer has no children that outlive it.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch._dynamo.config as dynamo  # noqa: PLC0415 - takes a second
    import torch._inductor.config as inductor  # noqa: PLC0415

    inductor.deterministic = launch.deterministic  # no choice of kernels by time
    inductor.cpp_cache_precompile_headers = False  # they lie in /tmp, outside the seal
    inductor.cpp_wrapper = compute.device.type == "cpu"  # g++ runs once a graph: 2.5 times as fast
    # Beyond the limit dynamo would go on without compiling, with other bits.
    dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = MOST_GRAPHS, True
    for block in model.blocks:
        block.compile(dynamic=False)
    try:
        _warm_up(model, launch, numerics, compute, heldouts)
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise  # else a step will find out, too, and halve the micro-batch
    model.zero_grad(set_to_none=True)
    cache.seal()
    return cache


def _warm_up(
    model: Model, launch: Launch, numerics: Numerics, compute: Compute, heldouts: Sequence[Sequence[int]]
) -> None:
    """Makes a pass of each size that training will meet; leaves gradients behind."""
    for windows in _sizes(launch.global_batch, numerics.micro_batch):
        with compute.autocast():
            loss = model.loss_sum(made_up_windows(model, windows, launch.seq_len + 1))
        loss.backward()  # type: ignore[no-untyped-call]
    for count, length in heldouts:
        for windows in _sizes(count, windows_a_pass(numerics.micro_batch, launch.seq_len, length - 1)):
            with torch.inference_mode(), compute.autocast():
                model.loss_by_target(made_up_windows(model, windows, length))


def _sizes(windows: int, micro_batch: int) -> set[int]:
    """Returns the sizes of the micro-batches of so many windows."""
    return {min(windows, micro_batch), windows % micro_batch} - {0}
