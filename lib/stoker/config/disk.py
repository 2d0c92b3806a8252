"""What the hot disk's size says of the configuration: floors, the start gate and segments against its bytes.

The hot budget is the disk's size less `stage.free_floor`, which is never filled.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.config.checks import Fault
from stoker.config.document import KeyPath
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, write_count

SEGMENT_SHARE = 3  # one segment is read, the next is being built, and one may still be rolled back into


def disk_faults(pipeline: Pipeline, hot_bytes: int) -> list[Fault]:
    """What can never work on a hot disk of this size, each with its numbers."""
    return [
        *_floor_faults(pipeline, hot_bytes),
        *_held_faults(pipeline, hot_bytes - pipeline.stage.free_floor, hot_bytes),
    ]


def disk_notes(pipeline: Pipeline, hot_bytes: int) -> list[Fault]:
    """What works on a hot disk of this size, but not well."""
    budget = hot_bytes - pipeline.stage.free_floor
    segment = pipeline.plan.segment_tokens * token_bytes(pipeline)
    if segment * SEGMENT_SHARE <= budget:
        return []
    most = max(1, budget // SEGMENT_SHARE // token_bytes(pipeline))
    rounded = write_count(_rounded_down(most))
    why = (
        "shard sets leave for warm only when a whole segment is behind the run"
        if pipeline.warm is not None
        else "it is drawn only once so much is proven, or the data is complete"
    )
    return [
        Fault(
            ("plan", "segment_tokens"),
            f"{format_count(pipeline.plan.segment_tokens)} tokens take {format_bytes(segment)}, more than a "
            f"third of the {format_bytes(budget)} that hot holds above stage.free_floor; {why}. "
            f"At most {rounded} fit well",
        )
    ]


def token_bytes(pipeline: Pipeline) -> int:
    """Bytes a token takes in a shard set."""
    return 2 if vocabulary(pipeline) <= 1 << 16 else 4


def vocabulary(pipeline: Pipeline) -> int:
    """How many ids there are; a given tokenizer is not opened, and taken for a large one."""
    return pipeline.tokenizer.train.vocab_size if pipeline.tokenizer.train else 1 << 17


def _floor_faults(pipeline: Pipeline, hot_bytes: int) -> Iterator[Fault]:
    """Room that is to be kept free, but is not there at all."""
    floors: dict[KeyPath, int] = {("stage", "free_floor"): pipeline.stage.free_floor}
    if pipeline.warm is not None and pipeline.evict.target_free is not None:
        floors["evict", "target_free"] = pipeline.evict.target_free
    for path, floor in floors.items():
        if floor >= hot_bytes:
            yield Fault(
                path,
                f"{format_bytes(floor)} are to stay free on a hot disk of {format_bytes(hot_bytes)}: nothing "
                "would ever be staged there; lower it",
            )


def _held_faults(pipeline: Pipeline, budget: int, hot_bytes: int) -> Iterator[Fault]:
    """Tokens that are to lie on hot at once, but do not fit."""
    wanted: dict[KeyPath, int] = {("train", "start_when", "tokens"): pipeline.train.start_when.tokens}
    if pipeline.warm is not None:
        wanted["evict", "min_active_tokens"] = pipeline.evict.min_active_tokens
    for path, tokens in wanted.items():
        needed = tokens * token_bytes(pipeline)
        if needed > max(0, budget):
            yield Fault(
                path,
                f"{tokens} tokens take {format_bytes(needed)}, and hot holds {format_bytes(hot_bytes)} less "
                f"{format_bytes(pipeline.stage.free_floor)} of stage.free_floor; lower it",
            )


def _rounded_down(count: int) -> int:
    """Two significant digits: a number that a person would write."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return count // unit * unit
