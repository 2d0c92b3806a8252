"""Tries, before the first step of a run, how many windows a pass can have: `micro_batch: auto`."""

from __future__ import annotations

import resource
from pathlib import Path

import torch
from torch import Tensor

from stoker.observe.machine import MemoryWatch
from stoker.store.errors import NoMemory
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.steps.device import Compute
from stoker.training.steps.failures import is_out_of_memory, words_of
from stoker.training.steps.figures import allocation_retries
from stoker.training.steps.memory import divisors, free_caches
from stoker.training.steps.step import add_gradients

FLOAT_BYTES = 4
PLENTY = 4  # times what a pass is estimated to take: then it is not tried
SPARE = 20  # a GPU keeps a part in so many free: evaluations and fragmentation take some


def fitting(model: Model, most: int, *, global_batch: int, length: int, compute: Compute) -> int:
    """Returns the largest divisor of the global batch, at most `most`, whose passes of such windows fit.

    The optimizer's state must be there already. Leaves parameters, gradients and random state as they are.
    Raises NoMemory where not even one window fits.
    """
    sizes = [size for size in divisors(global_batch) if size <= most]
    if compute.device.type == "cpu":
        spare = spare_bytes()
        if PLENTY * pass_bytes(model.shape, sizes[0] * length) <= spare:
            return sizes[0]
        # The kernel promises more than there is, and kills: what is plainly too much is not tried.
        sizes = [size for size in sizes if size == 1 or pass_bytes(model.shape, size * length) <= spare]
    lack = ""
    for size in sizes:
        lack = _lack(model, size, passes=min(2, global_batch // size), length=length, compute=compute)
        if not lack:
            return size
    raise NoMemory(
        f"a window of {length} tokens does not fit into memory with this model: {lack}. Set train.recompute: "
        "blocks, shorten train.seq_len, or make train.model smaller"
    )


def pass_bytes(shape: Shape, tokens: int) -> int:
    """Returns about what a pass on a CPU takes at most, in float32: activations of each block, gradients."""
    activations = tokens * shape.layers * (16 * shape.width + 6 * shape.ffn_width)
    block = 4 * shape.width * shape.width + 3 * shape.width * shape.ffn_width
    parameters = 2 * shape.vocab_size * shape.width + shape.layers * block
    return FLOAT_BYTES * (activations + parameters)


def spare_bytes() -> int:
    """Returns what this process can still take of the host's memory."""
    spare = MemoryWatch().sample().headroom_bytes
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return spare
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return max(0, min(spare, limit - used))


def made_up_windows(model: Model, count: int, length: int) -> Tensor:
    """Returns token ids (count, length) that stand for any others."""
    return (torch.arange(length, device=model.cos.device) % model.shape.vocab_size).repeat(count, 1)


def _lack(model: Model, size: int, *, passes: int, length: int, compute: Compute) -> str:
    """Returns why passes over made-up windows do not fit, "" where they do.

    A second one finds the gradients of the first.
    """
    device = compute.device
    retries = allocation_retries(device)
    try:
        add_gradients(model, [made_up_windows(model, size, length + 1)] * passes, compute)
        if device.type == "cpu" or size == 1:  # with less there is nothing to train
            return ""
        free, whole = torch.cuda.mem_get_info(device)
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        return words_of(problem)
    else:
        is_short = free < whole // SPARE or allocation_retries(device) > retries
        return "too little is left" if is_short else ""
    finally:
        model.zero_grad()
        free_caches()
