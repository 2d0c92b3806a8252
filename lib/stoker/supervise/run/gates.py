"""The data a run waits for: the start gate and the configured conditions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from stoker.config.schema import Pipeline
from stoker.plan.growth import GrowthPolicy


@dataclass(frozen=True)
class DataInView:
    """The shard sets and tokens published for a run; `complete`: no more will come."""

    sets: int
    train_tokens: int
    val_tokens: int
    complete: bool


@dataclass(frozen=True)
class RequiredData:
    """The data required before a run's first step; a window is at least seq_len + 1 tokens."""

    sets: int
    train_tokens: int
    heldout_tokens: int
    seq_len: int


@dataclass(frozen=True)
class Gate:
    """`open`: continue; `closed`: wait, for the reason `why`; `hopeless`: waiting will never help."""

    state: Literal["open", "closed", "hopeless"]
    why: str


def first_closed(gates: Iterable[Gate]) -> Gate | None:
    """Returns the first gate that is not open, without computing those after it."""
    return next((gate for gate in gates if gate.state != "open"), None)


def start_gate(data: DataInView, wants: RequiredData) -> Gate:
    """Returns whether a new run may begin; complete data suffices if it fills one window."""
    if data.complete:
        if data.train_tokens > wants.seq_len:
            return Gate("open", "the data is complete")
        return Gate(
            "hopeless",
            f"the data is complete and holds {data.train_tokens:,} training tokens in {data.sets} "
            f"shard sets, fewer than one window of {wants.seq_len + 1:,}; look for quarantined files with "
            "`stoker status`, or add files to the source",
        )
    if data.sets < wants.sets:
        return Gate("closed", f"{data.sets} of {wants.sets} shard sets are proven")
    needed = max(wants.train_tokens, wants.seq_len + 1)
    if data.train_tokens < needed:
        return Gate("closed", f"{data.train_tokens:,} of {needed:,} training tokens are proven")
    if data.val_tokens < wants.heldout_tokens:
        return Gate("closed", f"{data.val_tokens:,} of {wants.heldout_tokens:,} held-out tokens are proven")
    return Gate("open", f"{data.sets} shard sets with {data.train_tokens:,} training tokens are proven")


def growth_policy(pipeline: Pipeline) -> GrowthPolicy:
    """Returns the configured rules for growing the plan."""
    train, plan = pipeline.train, pipeline.plan
    return GrowthPolicy(
        seed=train.seed,
        seq_len=train.seq_len,
        segment_tokens=plan.segment_tokens,
        order=plan.order,
        hold_s=plan.hold,
        epochs=plan.epochs,
        first_segment_tokens=train.start_when.tokens,
    )


def gate_wants(pipeline: Pipeline) -> RequiredData:
    """Returns the data required before a new run begins."""
    train = pipeline.train
    return RequiredData(
        sets=train.start_when.shard_sets,
        train_tokens=train.start_when.tokens,
        heldout_tokens=train.evaluate.tokens if pipeline.shard.val_ratio else 0,
        seq_len=train.seq_len,
    )


def wants_of_external(pipeline: Pipeline) -> RequiredData:
    """Returns the same for an external trainer: which windows it reads, and holds out, is its own affair."""
    start_when = pipeline.train.start_when
    return RequiredData(start_when.shard_sets, start_when.tokens, 0, 0)
