"""The start gate: when there is enough proven data to begin a run, and when there never will be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DataInView:
    """What the dataset offers a run now: published shard sets and tokens; `complete` = no more come."""

    sets: int
    train_tokens: int
    val_tokens: int
    complete: bool


@dataclass(frozen=True)
class GateWants:
    """What a run wants before its first step; tokens are counts, a window is seq_len + 1 tokens at least."""

    sets: int
    train_tokens: int
    heldout_tokens: int
    seq_len: int


@dataclass(frozen=True)
class Gate:
    """`open`: go on; `closed`: wait, for what `why` says; `hopeless`: waiting will never help."""

    state: Literal["open", "closed", "hopeless"]
    why: str


def first_closed(gates: Iterable[Gate]) -> Gate | None:
    """The first gate that is not open; those behind it are not asked."""
    return next((gate for gate in gates if gate.state != "open"), None)


def start_gate(data: DataInView, wants: GateWants) -> Gate:
    """Whether a new run may begin; complete data is taken as it is if it fills one window."""
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
