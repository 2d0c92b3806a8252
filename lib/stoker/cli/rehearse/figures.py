"""What a rehearsal tells of its measurements: pure functions over values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from stoker.config.checks import token_bytes
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.observe.pace import Left

DAY_S = 86_400.0
BYTES_A_TOKEN, BYTES_A_WORD = 8, 500  # of parquet: for a few batches, and to train a tokenizer's entries


@dataclass(frozen=True)
class Measured:
    """What was seen: `kills` by role, "" for one that was not shown in time; the rest by step or save.

    `left` is the whole run at the pace of the rehearsal; `disks` are place, bytes at its end, total and free.
    """

    kills: Mapping[str, str]
    rates: Sequence[float]  # tokens a second
    stalls_s: Sequence[float]
    seals_s: Sequence[float]
    proofs_s: Sequence[float]
    left: Left
    disks: Sequence[tuple[str, int, int, int]] = ()

    @property
    def is_good(self) -> bool:
        return all(self.kills.values()) and all(needs <= total for _, needs, total, _ in self.disks)


def told(pipeline: Pipeline, seen: Measured) -> Iterator[tuple[str, str]]:
    """Yields title and text of each row of the report."""
    steps, batch = pipeline.train.horizon, pipeline.train.global_batch * pipeline.train.seq_len
    for what, led_to in seen.kills.items():
        yield what, led_to or "not shown within the time; give it more --minutes"
    if not (seen.rates and seen.stalls_s and seen.seals_s and seen.proofs_s):
        return
    rate, *saves = map(median, (seen.rates, seen.stalls_s, seen.seals_s, seen.proofs_s))
    yield "speed", f"{format_count(rate)} tokens/s, {batch / rate:.3g} s a step"
    yield "save", "training waits {:.2g} s, sealed after {:.1f} s, proven {:.1f} s later".format(*saves)
    whole = whole_run(seen.left, seen.rates, steps * batch)
    yield "whole run", f"{steps:,} steps, {format_count(steps * batch)} tokens: done {whole}"
    for place, needs, total, free in seen.disks:
        fits = "" if needs <= total else "; it does not fit"
        has = f"{format_bytes(total)}, {format_bytes(free)} of it free now"
        yield "disk", f"{place}: about {format_bytes(needs)} at the end of the run, of {has}{fits}"
    for title, every_s in (
        ("best interval", best_interval(saves[0], saves[1])),
        ("interval as set", interval(pipeline, batch / rate)),
    ):
        share = lost(every_s, saves[0])
        yield title, f"{format_duration(every_s)} between checkpoints: {share:.2%} lost at a failure a day"


def whole_run(left: Left, rates: Sequence[float], tokens: int) -> Left:
    """Returns the time of the whole run: at its pace, else at the speeds of the middle half of its steps."""
    if left.least_s is not None:
        return left
    slow, _, fast = quantiles([*rates, rates[-1]], n=4, method="inclusive")
    return Left(tokens / fast, tokens / slow)


def best_interval(stall_s: float, seal_s: float, between_s: float = DAY_S) -> float:
    """Returns the seconds between two checkpoints at which least time is lost (Young, 1974).

    Never shorter than a seal takes: the next save would wait for it.
    """
    return max(math.sqrt(2 * stall_s * between_s), seal_s)


def lost(every_s: float, stall_s: float, between_s: float = DAY_S) -> float:
    """Returns the share of time lost: to saves, and to steps that failures undo."""
    return stall_s / every_s + every_s / 2 / between_s


def interval(pipeline: Pipeline, step_s: float) -> float:
    """Returns the seconds between two checkpoints as the file sets them."""
    set_ = pipeline.train.checkpoint
    return min(set_.every or math.inf, set_.every_steps * step_s if set_.every_steps else math.inf)


def chosen(pipeline: Pipeline, files: Mapping[str, int]) -> dict[str, int]:
    """Returns the smallest file that feeds some batches and trains the tokenizer, else the two largest."""
    train, trains = pipeline.train, pipeline.tokenizer.train
    least = BYTES_A_TOKEN * train.global_batch * train.seq_len
    least = max(least, BYTES_A_WORD * trains.vocab_size if trains else 0)
    by_size = sorted(files.items(), key=lambda file: (file[1], file[0]))
    return dict([file for file in by_size if file[1] >= least][:1] or by_size[-2:])


def at_end(pipeline: Pipeline, *, sets: int, parquet: int, checkpoint: int) -> dict[str, int]:
    """Returns the bytes in each directory at the end of the whole run.

    `sets` and `parquet` are those of the whole source, `checkpoint` of one. With warm, hot holds what fits.
    """
    set_, limit = pipeline.train.checkpoint, pipeline.dataset.limit.tokens
    sets = min(sets, limit * token_bytes(pipeline)) if limit else sets
    count = set_.keep_last + 2 + len(set_.milestones)  # the best one, and one that is being sealed
    count += pipeline.train.horizon // set_.keep_every if set_.keep_every else 0
    saved = count * checkpoint
    if pipeline.warm is None:
        return {"state": saved, "hot": sets + (parquet if pipeline.shard.release == "never" else 0)}
    return {"state": saved, "warm": sets + (saved if set_.mirror else 0)}


def strangers(cards: Sequence[Mapping[str, Any]], visible: str | None) -> str:
    """Returns who computes on a card that the trainer may use, "" for nobody; `visible` as CUDA reads it."""
    for card in cards:
        names = {str(card["index"]), card["uuid"]}
        if visible is None or names & set(visible.split(",")):
            for pid, size in (card["figures"].get("processes") or {}).items():
                return f"pid {pid} has {format_bytes(size)} on GPU {card['index']} ({card['name']})"
    return ""
