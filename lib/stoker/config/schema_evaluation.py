"""The keys of `evaluations:` and `promote:` in the file; sizes are in bytes, durations in seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stoker.config.reading import (
    FilePath,
    MetricName,
    Number,
    Positive,
    PositiveSeconds,
    PositiveSize,
    Section,
    Text,
)

Margin = Annotated[Number, Field(ge=0)]


class SuiteSchedule(Section):
    """A suite, the checkpoints that it is run on, and with what.

    Without a time of its own it is run where another one is due, for `promote`.
    """

    suite: FilePath  # the loading puts a shipped suite's file in place of its name
    at: tuple[Literal["milestones", "finish"], ...] = ()
    every_steps: Positive | None = None
    every_checkpoints: Positive | None = None
    where: Literal["cpu", "between"] = "cpu"  # between: on the free GPU, between two launches
    timeout: PositiveSeconds = 3600.0
    memory: PositiveSize | None = None  # of the worker; None: no limit of its own
    batch: Positive = 8
    threads: Positive = 1

    @property
    def name(self) -> str:
        return self.suite.stem

    @property
    def has_time(self) -> bool:
        """Whether it is ever due of itself."""
        return bool(self.at or self.every_steps or self.every_checkpoints)


class Floor(Section):
    """What a metric must reach, whatever it is compared with."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _has_one_bound(self) -> Floor:
        if self.min is None and self.max is None:
            raise ValueError("needs min or max; write one")
        return self

    def holds(self, value: float) -> bool:
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class Promote(Section):
    """When a checkpoint takes the promoted one's place; what each metric is called, `TASK/METRIC`.

    A guard's number is its margin, in the metric's unit: by so much it may be worse. That of the primary is 0
    unless it is among the guards.
    """

    primary: MetricName
    guards: dict[MetricName, Margin] = Field(default_factory=dict)
    floors: dict[MetricName, Floor] = Field(default_factory=dict)
    gate: Text | None = None  # a suite of which every case must pass
    on_regression: Literal["event", "pause", "halt"] = "event"

    @property
    def margins(self) -> dict[str, float]:
        """The metrics that are compared with the promoted checkpoint's, with their margins."""
        return {self.primary: 0.0, **self.guards}
