"""Reads the next batches in a thread while a step is computed."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from stoker.plan.positions import Position
from stoker.training.data.batches import Batches

AHEAD = 2  # batches ready while a step is computed


@dataclass(frozen=True)
class Prepared:
    """The windows of one optimizer step as tensors."""

    groups: tuple[Tensor, ...]  # int64 (b, seq_len + 1) in host memory, pinned where a GPU will read them
    tokens: int  # trained on
    position: Position  # after the batch


class Prefetcher:
    """Takes batches in their order, each read in a thread before it is asked for.

    While it is open, `batches` is ahead of training. The plan is read again only while the thread rests.
    """

    def __init__(self, batches: Batches, device: torch.device) -> None:
        self._batches = batches
        self._pins = device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, "batches")
        self._coming: deque[Future[Prepared | None]] = deque()
        self._position = batches.position  # after the last batch taken

    def next(self) -> Prepared | None:
        """Returns the next batch, or None while the plan has too few windows; waits while it is read.

        Raises what reading it has raised.
        """
        batch = self._taken()
        if batch is None and self._batches.reread():  # it has grown since the thread looked
            batch = self._taken()
        return batch

    def close(self) -> None:
        """Ends the thread and puts the batches that it read too many back."""
        self._thread.shutdown(cancel_futures=True)
        self._coming.clear()
        self._batches.position = self._position

    def _taken(self) -> Prepared | None:
        while len(self._coming) <= AHEAD:
            self._coming.append(self._thread.submit(self._prepare))
        batch = self._coming.popleft().result()
        if batch is None:
            while self._coming:  # they found no more
                self._coming.popleft().result()
        else:
            self._position = batch.position
        return batch

    def _prepare(self) -> Prepared | None:
        batch = self._batches.next()
        if batch is None:
            return None
        groups = (torch.from_numpy(group) for group in batch.groups)
        ready = tuple(group.pin_memory() if self._pins else group for group in groups)
        return Prepared(ready, batch.tokens, batch.position)
