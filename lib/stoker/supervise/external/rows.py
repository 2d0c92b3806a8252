"""Rows of the training log from what a trainer of the user's own tells, or what is read of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.supervise.health.trainer_protocol import TrainerMessage, parse

# Of a trainer that tells thousands of steps a second, the others are left out.
ROWS_PER_S, MOST_ROWS = 10.0, 1000
KEYS = ("lr", "grad_norm", "tokens", "tokens_per_s", "mfu", "data_wait_s", "memory_bytes", "micro_batch")


class Rows:
    """Makes rows of datagrams: one a step that has a loss, one an evaluation; `step` is the last with one."""

    def __init__(self, step: int = -1) -> None:
        self._step, self._evaluated = step, step
        self._val_loss: float | None = None
        self._step_of_words = step
        self._room, self._at = float(MOST_ROWS), 0.0

    def of(self, datagrams: Iterable[bytes], launch: str, now: float) -> Iterator[Mapping[str, Any]]:
        """Yields the rows; `now` in monotonic seconds. A loss that is not finite is None."""
        self._room = min(MOST_ROWS, self._room + ROWS_PER_S * (now - self._at))
        self._at = now
        for datagram in datagrams:
            said = parse(datagram, launch)
            if said is None or said.get("rank", 0):
                continue
            for row in self._of(said):
                if self._room >= 1:
                    self._room -= 1
                    yield row

    def _of(self, said: TrainerMessage) -> Iterator[Mapping[str, Any]]:
        step = said.get("step", self._step_of_words)  # a loss may come in a word of its own
        self._step_of_words = max(step, self._step_of_words)
        if step > self._step and ("loss" in said or "nonfinite" in said):
            self._step = step
            yield {"step": step, "loss": said.get("loss")} | {key: said[key] for key in KEYS if key in said}
        val_loss = said.get("val_loss")  # Lightning shows it until the next one
        if val_loss is not None and step > self._evaluated and val_loss != self._val_loss:
            self._evaluated, self._val_loss = step, val_loss
            yield {"step": step, "val_loss": val_loss}
