"""The trainer's messages: datagrams of KEY=value lines, folded into one view of the trainer."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from stoker.store.record import parse_json

MOST_BYTES = 8192  # a trainer sends no longer datagram
MOST_TEXT = 500
MOST_PATH = 4096  # bytes, as Linux allows
MOST_UNKNOWN, MOST_KEY = 8, 40  # keys that nobody knows, and characters of each: an operator is told
MOST_RANKS = 1024  # whose stacks are taken

PHASES = frozenset({"load", "compile", "train", "eval", "checkpoint", "wait-data"})
STEPPING = frozenset({"train", "eval", "checkpoint"})  # also between steps
COUNTING = frozenset({"eval", "checkpoint"})  # in which a higher DONE is progress


TrainerMessage = Mapping[str, Any]  # fields of `TrainerView`, and those that the view does not keep
_NOT_OF_THE_VIEW = (
    *("at", "checkpoint", "done", "nonfinite", "numerics", "pid", "rank"),
    *("save_failed", "save_in_place", "stacks", "unknown"),
)


class CheckpointNotice(NamedTuple):
    """A checkpoint that the trainer told of: path, newest step then, and Unix time where it said so."""

    path: str
    step: int | None
    at: float | None = None


def parse(datagram: bytes, launch: str) -> TrainerMessage | None:
    """Returns the valid values of a datagram; None when it is of another launch, too long or no text."""
    if len(datagram) > MOST_BYTES:
        return None
    try:
        lines = datagram.decode("utf-8").split("\n")  # a path may have what `splitlines` takes for an end
    except UnicodeDecodeError:
        return None
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    if values.get("LAUNCH") != launch:
        return None
    said: dict[str, Any] = {}
    for key, reader in _READERS.items():
        with contextlib.suppress(ValueError, TypeError):  # an invalid value is ignored
            if values.get(key):
                said[key.lower()] = reader(values[key])
    if unknown := sorted(values.keys() - _READERS.keys() - {"LAUNCH"}):
        said["unknown"] = tuple(key[:MOST_KEY] for key in unknown[:MOST_UNKNOWN])
    if any(_is_not_finite(values.get(key, "")) for key in ("LOSS", "GRAD_NORM")):
        said["nonfinite"] = 1
    return said


@dataclass(frozen=True)
class TrainerView:
    """The trainer as its messages show it; times are monotonic seconds."""

    launch: str
    heard_at: float  # the last message of any kind
    moved_at: float  # the last progress: a higher step, or more done within `COUNTING` phases
    phase: str = "load"
    phase_at: float = 0.0  # its begin
    spent_s: Mapping[str, float] = field(default_factory=dict)  # in phases left again since that progress
    done: Mapping[str, int] = field(default_factory=dict)  # the most in each phase since the last step
    announced: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # rank -> pid, signal for stacks
    waits: bool = False  # for data; a checkpoint in between does not end the wait
    step: int | None = None
    tokens: int | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None  # of the card's peak, 0 to 1
    memory_bytes: int | None = None  # the step's peak on the device; on a CPU the process' peak
    alloc_retries: int = 0  # of this launch
    data_wait_s: float | None = None  # before the step
    save_stall_s: float | None = None  # that the last save kept the trainer from training
    micro_batch: int | None = None
    val_loss: float | None = None
    position: tuple[int, int] | None = None
    gpu_reserved_bytes: int | None = None  # of the card on which it has reserved most
    error: str | None = None
    finished: str | None = None  # why it ends
    nonfinite: int = 0  # messages so far with a loss or gradient norm that is not finite

    @property
    def doing(self) -> str:
        """The phase; "" before the trainer's first word, and once it has told that it ends."""
        is_heard = self.phase != "load" or self.heard_at != self.moved_at
        return self.phase if is_heard and self.finished is None else ""

    def quiet_s(self, now: float) -> float:
        """Returns the seconds without progress in the present phase, also over changes to others and back."""
        return self.spent_s.get(self.phase, 0.0) + now - max(self.phase_at, self.moved_at)

    def moved(self, now: float) -> TrainerView:
        """Returns the view with progress made now."""
        return replace(self, moved_at=now, spent_s={})


def heard(view: TrainerView, said: TrainerMessage, now: float) -> TrainerView:
    """Returns the view after a datagram; values that the datagram leaves out stay.

    Of another rank than 0 only the step counts: it has no loss of the run's, and its phase may lag behind.
    Who never tells a phase trains from the first step on.
    """
    rank = said.get("rank", 0)
    if "pid" in said and "stacks" in said and rank < MOST_RANKS:
        view = replace(view, announced={**view.announced, rank: (said["pid"], said["stacks"])})
    if rank:
        said = {name: said[name] for name in ("step",) if name in said}
    elif "step" in said and "phase" not in said and view.phase == "load":
        said = {**said, "phase": "train"}
    plain = {field: value for field, value in said.items() if field not in _NOT_OF_THE_VIEW}
    after = replace(view, **plain, nonfinite=view.nonfinite + said.get("nonfinite", 0), heard_at=now)
    waits = after.phase == "wait-data" or (view.waits and after.phase == "checkpoint")
    after = replace(after, waits=waits)
    if after.phase != view.phase:
        spent = {**view.spent_s, view.phase: view.quiet_s(now)}
        after = replace(after, phase_at=now, spent_s=spent)
    step = said.get("step")
    if step is not None and (view.step is None or step > view.step):
        return replace(after.moved(now), done={})
    after = replace(after, step=view.step)  # a rank may lag
    done = said.get("done", 0)
    if after.phase in COUNTING and done > view.done.get(after.phase, 0):
        return replace(after.moved(now), done={**view.done, after.phase: done})
    return after


def _phase(value: str) -> str:
    if value not in PHASES:
        raise ValueError(f"{value!r} is no phase")
    return value


def _whole(value: str) -> int:
    number = int(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"{number} is no count")
    return number


def _is_not_finite(value: str) -> bool:
    with contextlib.suppress(ValueError):
        return not math.isfinite(float(value))
    return False


def _number(value: str) -> float:
    """Returns a finite number; the trainer's log shows a loss of nan, a gauge does not."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number


def _position(value: str) -> tuple[int, int]:
    entry, offset = map(_whole, value.split(","))
    return entry, offset


def _signal(value: str) -> int:
    """Returns a signal that a process can catch."""
    number = signal.Signals(int(value))
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"nobody catches {number.name}")
    return int(number)


def _object(value: str) -> dict[str, Any]:
    return dict(parse_json(value.encode()))


_READERS: Mapping[str, Callable[[str], Any]] = {
    "PHASE": _phase,
    **dict.fromkeys(("RANK", "STEP", "DONE", "TOKENS", "GPU_RESERVED_BYTES"), _whole),
    **dict.fromkeys(("MEMORY_BYTES", "ALLOC_RETRIES", "MICRO_BATCH"), _whole),
    **dict.fromkeys(("LOSS", "LR", "GRAD_NORM", "TOKENS_PER_S", "VAL_LOSS"), _number),
    **dict.fromkeys(("AT", "MFU", "DATA_WAIT_S", "SAVE_STALL_S"), _number),
    "PID": _whole,
    "STACKS": _signal,
    "POSITION": _position,
    "NUMERICS": _object,
    **dict.fromkeys(("ERROR", "FINISHED", "SAVE_FAILED", "SAVE_IN_PLACE"), lambda value: value[:MOST_TEXT]),
    "CHECKPOINT": lambda value: value[:MOST_PATH],
}
