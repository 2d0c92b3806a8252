"""How many windows a pass has, and what follows when it does not fit into memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from stoker.store.errors import NoMemory
from stoker.training.steps.failures import is_out_of_memory, words_of
from stoker.training.steps.figures import allocation_retries

# On a CPU wider passes gain nothing and take memory. On one thread, CPU seconds of 2.4, 8 and 29 M parameters
# were least at 1,024 to 4,096 tokens, alike within 3 %; 256 tokens cost the two small ones 9 % more. On two
# threads only the smallest was measured.
CPU_PASS_TOKENS = 2048

RETRIED_STEPS = 3  # in a row: memory is so short that each step waits for the driver

Made = TypeVar("Made")


def most_windows(*, global_batch: int, seq_len: int, device: str) -> int:
    """Returns the most windows a pass that are worth trying: those of a batch, on a CPU a divisor of them."""
    if device == "cuda":
        return global_batch
    return max(size for size in divisors(global_batch) if size == 1 or size * seq_len <= CPU_PASS_TOKENS)


def divisors(number: int) -> list[int]:
    """Returns the divisors of a number, the largest first."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def windows_a_pass(micro_batch: int, seq_len: int, length: int) -> int:
    """Returns how many windows of another length make a pass: at most as many tokens, at least one window."""
    return max(1, micro_batch * seq_len // length)


def while_it_fits(
    make: Callable[[int], Made], micro_batch: int, halved: Callable[[int], None] = lambda micro_batch: None
) -> Made:
    """Returns make(micro_batch); where memory runs out, calls `halved` and make with half of it, and so on.

    `make` must be repeatable. Raises NoMemory where not even one window fits.
    """
    while True:
        try:
            return make(micro_batch)
        except Exception as problem:
            if not is_out_of_memory(problem):
                raise
            if micro_batch == 1:
                raise NoMemory(
                    f"memory ran out at a micro-batch of one window: {words_of(problem)}. Set "
                    "train.recompute: blocks, shorten train.seq_len, or give the trainer more memory"
                ) from problem
        micro_batch //= 2  # here the exception is gone, and with it what the pass held
        halved(micro_batch)
        free_caches()


@contextmanager
def not_repeated(what: str) -> Iterator[None]:
    """Makes NoMemory of memory that runs out where a repetition would be wrong."""
    try:
        yield
    except Exception as problem:
        if is_out_of_memory(problem):
            raise NoMemory(f"memory ran out in {what}: {words_of(problem)}. Give it more memory") from problem
        raise


def free_caches() -> None:
    """Gives back to the system what torch keeps for later use."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Pressure:
    """Watches how often CUDA's allocator had to free its caches and try again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._retries, self._steps = allocation_retries(device), 0

    def is_too_high(self) -> bool:
        """Returns, asked once after each step, whether the last three had to try again."""
        before, self._retries = self._retries, allocation_retries(self._device)
        self._steps = self._steps + 1 if self._retries > before else 0
        if self._steps < RETRIED_STEPS:
            return False
        self._steps = 0
        return True
