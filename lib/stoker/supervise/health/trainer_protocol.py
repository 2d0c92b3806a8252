"""What a trainer says: datagrams of KEY=value lines, read into words and folded into one view of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from stoker.supervise.health.moment import Moment

T = TypeVar("T", int, float)

MOST_BYTES = 8192  # a longer datagram is not one of ours
MOST_TEXT = 500

PHASES = frozenset({"load", "compile", "train", "eval", "checkpoint", "wait-data"})
STEPPING = frozenset({"train", "eval", "checkpoint"})  # steps, and what comes between them


@dataclass(frozen=True)
class Word:
    """One datagram; a field is None where the datagram did not say it (or said something unreadable)."""

    phase: str | None = None
    ready: bool = False
    step: int | None = None
    tokens: int | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    data_wait_s: float | None = None
    val_loss: float | None = None
    position: tuple[int, int] | None = None
    checkpoint: str | None = None
    finished: str | None = None
    error: str | None = None


def parse(datagram: bytes, launch: str) -> Word | None:
    """The datagram's word; None when it is of another launch, too long or no text."""
    if len(datagram) > MOST_BYTES:
        return None
    try:
        lines = datagram.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return None
    said = dict(line.split("=", 1) for line in lines if "=" in line)
    if said.get("LAUNCH") != launch:
        return None
    step = _whole(said.get("STEP"))
    phase = said.get("PHASE")
    return Word(
        phase=phase if phase in PHASES else None,
        ready=said.get("READY") == "1" or step is not None,
        step=step,
        tokens=_whole(said.get("TOKENS")),
        position=_position(said.get("POSITION")),
        checkpoint=_text(said.get("CHECKPOINT")),
        finished=_text(said.get("FINISHED")),
        error=_text(said.get("ERROR")),
        **{field: _number(said.get(key)) for key, field in _NUMBERS.items()},
    )


_NUMBERS = {
    "LOSS": "loss",
    "LR": "lr",
    "GRAD_NORM": "grad_norm",
    "TOKENS_PER_S": "tokens_per_s",
    "DATA_WAIT_S": "data_wait_s",
    "VAL_LOSS": "val_loss",
}


@dataclass(frozen=True)
class TrainerView:
    """The trainer as its words tell it; times are monotonic seconds.

    `moved_at` is the last new step or change of phase, `heard_at` the last word of any kind. `waits` is true
    while it waits for data; a checkpoint in between does not end that.
    """

    launch: str
    heard_at: Moment
    moved_at: Moment
    phase: str = "load"
    waits: bool = False
    ready: bool = False
    step: int | None = None
    tokens: int | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    val_loss: float | None = None
    position: tuple[int, int] | None = None
    finished: str | None = None
    error: str | None = None

    @classmethod
    def started(cls, launch: str, now: float) -> TrainerView:
        """A trainer that has not said anything yet."""
        return cls(launch, heard_at=now, moved_at=now)


def heard(view: TrainerView, word: Word, now: float) -> TrainerView:
    """The view after one more word; what the word does not say stays."""
    said: dict[str, Any] = {
        field: getattr(word, field) for field in _CARRIED if getattr(word, field) is not None
    }
    phase = word.phase or view.phase
    moved = phase != view.phase or (word.step is not None and word.step != view.step)
    return replace(
        view,
        **said,
        waits=phase == "wait-data" or (view.waits and phase == "checkpoint"),
        ready=view.ready or word.ready,
        heard_at=now,
        moved_at=now if moved else view.moved_at,
    )


_CARRIED = {one.name for one in fields(Word)} & {one.name for one in fields(TrainerView)} - {"ready"}


def _text(value: str | None) -> str | None:
    return value[:MOST_TEXT] if value else None


def _whole(value: str | None) -> int | None:
    number = _converted(int, value)
    return number if number is not None and 0 <= number < 2**63 else None


def _number(value: str | None) -> float | None:
    """A finite number; a loss of nan is the trainer's own affair and shows in its log, not in a gauge."""
    number = _converted(float, value)
    return number if number is not None and math.isfinite(number) else None


def _position(value: str | None) -> tuple[int, int] | None:
    entry, _, offset = (value or "").partition(",")
    first, second = _whole(entry), _whole(offset)
    return (first, second) if first is not None and second is not None else None


def _converted(convert: Callable[[str], T], value: str | None) -> T | None:
    try:
        return convert(value) if value and len(value) <= 40 else None
    except ValueError:
        return None
