"""The keys of `train.ema` and `train.phases` in the pipeline file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from stoker.config.reading import (
    AutoOrCount,
    Factor,
    Name,
    Natural,
    Positive,
    PositiveNumber,
    Section,
    ShareBelowOne,
    StepOrDecay,
)


class Ema(Section):
    """An exponential moving average of the weights, kept beside them; training never reads it."""

    decay: ShareBelowOne = 0.999
    every: Positive = 1  # updated after every so many steps
    from_step: Natural | None = None  # None: the end of the warm-up


class Yarn(Section):
    """A longer context by the interpolation of Peng et al. 2023 (arXiv 2309.00071)."""

    factor: Factor
    original_seq_len: Positive  # of the run's beginning: a second extension replaces the first
    beta_fast: PositiveNumber = 32.0  # turns over original_seq_len, above which a dimension stays as it is
    beta_slow: PositiveNumber = 1.0  # turns, below which it is interpolated whole
    attention_factor: PositiveNumber | None = None  # of cos and sin; None: 0.1 ln(factor) + 1

    @model_validator(mode="after")
    def _ramps_down(self) -> Yarn:
        if self.beta_fast <= self.beta_slow:
            raise ValueError("beta_fast must be above beta_slow: many turns are fast; lower beta_slow")
        return self


class Rope(Section):
    """Rotary positions of another base or range than the run began with."""

    theta: PositiveNumber | None = None
    yarn: Yarn | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Rope:
        if (self.theta is None) == (self.yarn is None):
            raise ValueError("takes theta or yarn; write one of the two")
        return self

    def body(self) -> dict[str, Any]:
        """Returns it as launch.json and model.json have it."""
        return self.model_dump(mode="json", exclude_none=True)


class Phase(Section):
    """Settings from a step on; what it does not set stays as the phase before had it."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Name
    # The last step before it; decay: where wsd begins to fall
    start: StepOrDecay = Field(alias="from")
    seq_len: Positive | None = Field(default=None, ge=2, le=2**20)
    rope: Rope | None = None
    global_batch: Positive | None = None
    micro_batch: AutoOrCount | None = None
    recompute: Literal["none", "blocks"] | None = None


@dataclass(frozen=True)
class PhaseSettings:
    """What is in force from one phase to the next; the first phase has no name and starts at 0."""

    name: str
    start: int  # the last step before it
    seq_len: int
    rope: Rope | None
    global_batch: int
    micro_batch: int | Literal["auto"]
    recompute: Literal["none", "blocks"]

    def followed_by(self, phase: Phase, start: int) -> PhaseSettings:
        """Returns the settings of the next phase."""
        names = ("seq_len", "rope", "global_batch", "micro_batch", "recompute")
        set_there = {name: value for name in names if (value := getattr(phase, name)) is not None}
        return replace(self, name=phase.name, start=start, **set_there)
