"""Repeats a scenario's variants in turns, and tells medians and ratios.

Variants take turns within each repeat, in an order that turns round with each one, so that a machine that
grows slower meanwhile does it to all alike. Ratios are to the first variant: the median of the repeats' own.
"""

from __future__ import annotations

import abc
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

Measures = Mapping[str, float]


class Scenario(abc.ABC):
    """Something to measure. A measure's name ends in its unit: ready_s, rss_bytes, rate_bytes_per_s."""

    name: ClassVar[str]
    repeats: ClassVar[int] = 5
    seconds: float = 0.0  # of a scenario that runs for a time
    limits: ClassVar[Measures] = {}  # a median above fails the bench; the first variant is only a scale

    def prepare(self, directory: Path) -> None:  # noqa: B027 - most have nothing to prepare
        """Make ready, once and unmeasured, what all variants need; directory is empty."""

    def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
        """Further findings that fail the bench, in words: for what a limit on one measure cannot say."""
        yield from ()

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        """What must hold of the medians; each is told as met or not, and one that is not fails the bench."""
        yield from ()

    def finish(self) -> None:  # noqa: B027 - most leave nothing behind but files
        """Ends what the measuring keeps running."""

    @abc.abstractmethod
    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        """What is compared, the scale first; each is called once a repeat with prepare's directory."""


@dataclass(frozen=True)
class Series:
    """One measure of one variant over the repeats."""

    values: tuple[float, ...]
    ratio: float | None  # to the first variant; None where it lacks the measure

    @property
    def median(self) -> float:
        """The middle of the repeats."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Bar:
    """A figure and the most it may be, or with `least` the least."""

    what: str
    found: float
    limit: float
    least: bool = False

    @property
    def met(self) -> bool:
        return self.found >= self.limit if self.least else self.found <= self.limit

    def __str__(self) -> str:
        bound = "least" if self.least else "most"
        return f"{self.what}: {self.found:.3g}, at {bound} {self.limit:g}: {'met' if self.met else 'NOT MET'}"


@dataclass(frozen=True)
class Result:
    """A scenario's series by variant and measure."""

    scenario: str
    repeats: int
    series: Mapping[str, Mapping[str, Series]]
    over_limit: tuple[str, ...] = field(default=())
    bars: tuple[Bar, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "scenario": self.scenario,
            "repeats": self.repeats,
            "over_limit": list(self.over_limit),
            "bars": [str(bar) for bar in self.bars],
            "variants": {
                variant: {
                    name: {"median": each.median, "ratio": each.ratio, "values": list(each.values)}
                    for name, each in measures.items()
                }
                for variant, measures in self.series.items()
            },
        }


def run(scenario: Scenario, repeats: int, directory: Path) -> Result:
    """Measure every variant `repeats` times, in turns."""
    scenario.prepare(directory)
    variants = scenario.variants()
    rows: dict[str, list[Measures]] = {name: [] for name in variants}
    try:
        for repeat in range(repeats):
            for name in turn(list(variants), repeat):
                rows[name].append(variants[name](directory))
    finally:
        scenario.finish()
    scale = next(iter(rows.values()))
    series = {
        name: {measure: _series(measure, taken, scale) for measure in taken[0]}
        for name, taken in rows.items()
    }
    bars = tuple(scenario.bars(series))
    failed = (str(bar) for bar in bars if not bar.met)
    found = (*over_limits(series, scenario.limits), *scenario.judge(series), *failed)
    return Result(scenario.name, repeats, series, found, bars)


def turn(names: list[str], repeat: int) -> list[str]:
    """The order of a repeat: forwards, then backwards."""
    return names if repeat % 2 == 0 else names[::-1]


def over_limits(series: Mapping[str, Mapping[str, Series]], limits: Measures) -> tuple[str, ...]:
    """Each median above its limit, in words; the first variant is the scale and has none."""
    found = []
    for variant in list(series)[1:]:
        for measure, limit in limits.items():
            each = series[variant].get(measure)
            if each is not None and each.median > limit:
                found.append(f"{variant}: {measure} {show(measure, each.median)} > {show(measure, limit)}")
    return tuple(found)


def table(result: Result) -> str:
    """For people: a line a variant and measure."""
    lines = [f"{result.scenario} ({result.repeats} repeats, in turns)"]
    lines.append(f"  {'variant':24} {'measure':20} {'median':>12} {'least':>12} {'most':>12} {'ratio':>7}")
    for variant, measures in result.series.items():
        for name, each in measures.items():
            figures = [show(name, value) for value in (each.median, min(each.values), max(each.values))]
            ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
            lines.append(
                f"  {variant:24} {name:20} {figures[0]:>12} {figures[1]:>12} {figures[2]:>12} {ratio:>7}"
            )
    lines += [f"  {bar}" for bar in result.bars]
    lines += [f"  OVER THE LIMIT  {line}" for line in result.over_limit]
    return "\n".join(lines)


def show(measure: str, value: float) -> str:
    """A value in a unit for people, by its measure's name."""
    if measure.endswith("bytes_per_s"):
        return f"{value / 1e6:.1f} MB/s"
    if measure.endswith("_bytes"):
        return f"{value / 2**20:.1f} MiB"
    if measure.endswith("_per_s"):
        return f"{value:,.0f}/s"
    if measure.endswith("_s"):
        return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:g}"


def machine() -> dict[str, Any]:
    """What the figures were taken on; ratios travel, absolute figures do not."""
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _series(measure: str, rows: list[Measures], scale: list[Measures]) -> Series:
    values = tuple(row[measure] for row in rows)
    pairs = [(value, base[measure]) for value, base in zip(values, scale, strict=True) if base.get(measure)]
    return Series(values, statistics.median(value / base for value, base in pairs) if pairs else None)
