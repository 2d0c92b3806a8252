"""What a rehearsal tells of its measurements: pure functions over values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from stoker.config.checks import token_bytes
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.observe.pace import Left

DAY_S = 86_400.0  # between two failures
BYTES_A_TOKEN, BYTES_A_WORD = 8, 500  # of parquet: for a few batches, and to train a tokenizer's entries


class Measured(NamedTuple):
    """What was seen: `kills` by role, "" for one that was not shown in time; the rest by step or save.

    `disks` are place, bytes at the end of the whole run, and bytes in all.
    """

    kills: Mapping[str, str]
    rates: Sequence[float]  # tokens a second
    stalls_s: Sequence[float]
    proofs_s: Sequence[float]  # from the begin of a save
    disks: Sequence[tuple[str, int, int]]

    def is_good(self) -> bool:
        return all(self.kills.values()) and all(needs <= total for _, needs, total in self.disks)


def told(pipeline: Pipeline, seen: Measured) -> Iterator[tuple[str, str]]:
    """Yields title and text of each row of the report."""
    steps, batch = pipeline.train.horizon, pipeline.train.global_batch * pipeline.train.seq_len
    tokens = pipeline.train.tokens_of(0, steps)
    for what, led_to in seen.kills.items():
        yield what, led_to or "not shown within the time; give it more --minutes"
    if not (seen.rates and seen.stalls_s and seen.proofs_s):
        return
    rate, stall_s, proof_s = map(median, (seen.rates, seen.stalls_s, seen.proofs_s))
    yield "speed", f"{format_count(rate)} tokens/s, {batch / rate:.3g} s a step"
    yield "save", f"training waits {stall_s:.2g} s, proven {proof_s:.1f} s after its begin"
    slow, _, fast = quantiles([*seen.rates, rate], n=4, method="inclusive")
    whole = Left(tokens / fast, tokens / slow)
    yield "whole run", f"{steps:,} steps, {format_count(tokens)} tokens: done {whole}"
    for place, needs, total in seen.disks:
        fits = "" if needs <= total else "; it does not fit"
        yield "disk", f"{place}: about {format_bytes(needs)} at the run's end, of {format_bytes(total)}{fits}"
    # Young (1974); but the next save would wait for one that is under way.
    best_s = max(math.sqrt(2 * stall_s * DAY_S), proof_s)
    yield "best interval", f"{format_duration(best_s)} between checkpoints, at a failure a day"


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
        if visible is None or {str(card["index"]), card["uuid"]} & set(visible.split(",")):
            for pid, size in (card["figures"].get("processes") or {}).items():
                return f"pid {pid} has {format_bytes(size)} on GPU {card['index']} ({card['name']})"
    return ""
