"""Checks the configuration against the size of the hot disk: floors, the start gate and plan segments.

The hot budget is the disk's size less `stage.free_floor`, which Stoker never fills.
"""

from __future__ import annotations

from stoker.config.checks import Fault
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, write_count

SEGMENT_SHARE = 3  # the trainer reads a segment, builders fill the next, a rollback may need the last


def disk_faults(pipeline: Pipeline, hot_bytes: int) -> list[Fault]:
    """Returns the settings that can never work on a hot disk of this size, with numbers."""
    free, size = pipeline.stage.free_floor, format_bytes(hot_bytes)
    floors = {"stage.free_floor": free}
    at_once = {"train.start_when.tokens": pipeline.train.start_when.tokens}
    if pipeline.warm is not None:
        floors["evict.target_free"] = pipeline.evict.target_free or 0
        at_once["evict.min_active_tokens"] = pipeline.evict.min_active_tokens
    found = {}
    for key, floor in floors.items():
        if floor >= hot_bytes:
            found[key] = (
                f"{format_bytes(floor)} are to stay free on a hot disk of {size}: nothing would ever be "
                "staged there; lower it"
            )
    for key, tokens in at_once.items():
        if (needed := tokens * token_bytes(pipeline)) > max(0, hot_bytes - free):
            found[key] = (
                f"{tokens} tokens take {format_bytes(needed)}, and hot holds {size} less "
                f"{format_bytes(free)} of stage.free_floor; lower it"
            )
    return [Fault(tuple(key.split(".")), text) for key, text in found.items()]


def disk_notes(pipeline: Pipeline, hot_bytes: int) -> list[Fault]:
    """Returns the settings that work badly on a hot disk of this size."""
    budget = hot_bytes - pipeline.stage.free_floor
    segment = pipeline.plan.segment_tokens * token_bytes(pipeline)
    if segment * SEGMENT_SHARE <= budget:
        return []
    most = max(1, budget // SEGMENT_SHARE // token_bytes(pipeline))
    unit = 10 ** max(0, len(str(most)) - 2)  # two significant digits, as a person would write
    why = (
        "shard sets leave for warm only when a whole segment is behind the run"
        if pipeline.warm is not None
        else "it is drawn only once so much is proven, or the data is complete"
    )
    text = (
        f"{format_count(pipeline.plan.segment_tokens)} tokens take {format_bytes(segment)}, more than a "
        f"third of the {format_bytes(budget)} that hot holds above stage.free_floor; {why}. "
        f"At most {write_count(most // unit * unit)} fit well"
    )
    return [Fault(("plan", "segment_tokens"), text)]


def token_bytes(pipeline: Pipeline) -> int:
    """Returns the bytes of a token in a shard set."""
    return 2 if vocabulary(pipeline) <= 1 << 16 else 4


def vocabulary(pipeline: Pipeline) -> int:
    """Returns the vocabulary size; does not open a given tokenizer, but assumes a large one."""
    return pipeline.tokenizer.train.vocab_size if pipeline.tokenizer.train else 1 << 17
