"""The keys of `evaluations:` and `promote:` in the file; sizes are in bytes, durations in seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stoker.config.reading import (
    FilePath,
    MetricName,
    Name,
    Number,
    Positive,
    PositiveSeconds,
    PositiveSize,
    Section,
)

Margin = Annotated[Number, Field(ge=0)]


class SuiteSchedule(Section):
    """A suite, the checkpoints that it is run on, and with what.

    Without a time of its own it is run where another one is due, for `promote`.
    """

    suite: FilePath  # a shipped one of etc/suites by its name, or FILE.yaml
    at: tuple[Literal["milestones", "finish"], ...] = ()  # train.checkpoint.milestones, the last checkpoint
    every_steps: Positive | None = None  # the first checkpoint after every so many steps
    every_checkpoints: Positive | None = None  # every so many-th checkpoint
    where: Literal["cpu", "between"] = "cpu"  # between: on the free GPU, between two launches
    timeout: PositiveSeconds = 3600.0  # of a model; then the worker is ended, and this evaluation is given up
    memory: PositiveSize | None = None  # the worker's limit; None: it has none
    batch: Positive = 8  # documents at once; half as many after it ran out of memory
    threads: Positive = 1  # of the CPU

    @model_validator(mode="after")
    def _ends_a_launch_at_a_step(self) -> SuiteSchedule:
        if self.where == "between" and self.every_checkpoints:
            raise ValueError("where: between ends a launch at a step; use every_steps for every_checkpoints")
        return self

    @property
    def name(self) -> str:
        return self.suite.stem

    @property
    def has_time(self) -> bool:
        """Whether it is ever due of itself."""
        return bool(self.at or self.every_steps or self.every_checkpoints)


class Promote(Section):
    """Metrics are named TASK/METRIC; a margin is in the metric's unit.

    The margin of a guard is by how much it may be worse. That of the primary is 0, unless it is a guard too.
    A floor is the worst value that may be promoted: the least of a metric that is to be high, else the most.
    """

    primary: MetricName
    guards: dict[MetricName, Margin] = Field(default_factory=dict)
    floors: dict[MetricName, Number] = Field(default_factory=dict)
    gate: Name | None = None  # a suite of which every case must pass
    on_regression: Literal["event", "pause", "halt"] = "event"

    @property
    def margins(self) -> dict[str, float]:
        """The metrics that are compared with the promoted checkpoint's, with their margins."""
        return {self.primary: 0.0, **self.guards}
