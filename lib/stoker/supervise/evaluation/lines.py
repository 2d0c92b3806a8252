"""evaluations.jsonl: what was measured of a checkpoint, and what its comparison with another one showed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoints.retention import History, counts
from stoker.store.log import read_entries
from stoker.store.record import values_of


@dataclass(frozen=True)
class MetricValue:
    """A metric's value over n documents; None where one of them has none."""

    value: float | None
    n: int
    stderr: float | None
    higher_is_better: bool


@dataclass(frozen=True)
class Comparison:
    """What n documents show of a metric against the baseline: better, not_worse, worse or doubt.

    `difference` > 0 is in the checkpoint's favour, and `low` to `high` its 95 % interval.
    """

    verdict: str
    difference: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class EvaluationLine:
    """A suite's results for a checkpoint, by the sha256 of its checkpoint.json.

    `baseline` is the digest of the checkpoint that the verdicts compare it with. `invalid` says why the
    results count for nothing. Results of one suite are comparable where `suite_digest` is the same.
    """

    checkpoint_digest: str
    step: int
    timeline: int
    suite: str
    suite_digest: str
    metrics: Mapping[str, MetricValue]
    verdicts: Mapping[str, Comparison]
    baseline: str | None = None
    gate: Mapping[str, Any] | None = None  # how many cases `passed`, `of` how many
    samples: str = ""
    samples_missing: int = 0
    invalid: str | None = None
    promotion: str = "none"
    why: tuple[str, ...] = ()


def parse_line(body: Mapping[str, Any]) -> EvaluationLine:
    """Returns the results of a line; raises KeyError or TypeError for one that holds none."""
    against, promotion = (body.get(name) or {} for name in ("against", "promotion"))
    parts: dict[str, Any] = {
        "metrics": {name: MetricValue(**found) for name, found in body["metrics"].items()},
        "baseline": against.get("digest"),
        "verdicts": {name: Comparison(**found) for name, found in against.get("verdicts", {}).items()},
        "promotion": promotion.get("verdict", "none"),
        "why": tuple(promotion.get("why", ())),
    }
    return EvaluationLine(**{**values_of(EvaluationLine, body, "suite", "suite_digest"), **parts})


def read_lines(log: Path, history: History) -> tuple[list[EvaluationLine], tuple[str, ...]]:
    """Returns the lines that count in a history, oldest first, and the log's damage."""
    lines, damage = read_entries(log, parse_line, "evaluation")
    return [line for line in lines if counts(line.timeline, line.step, history)], damage


def newest(lines: Iterable[EvaluationLine], checkpoint: str) -> dict[str, EvaluationLine]:
    """Returns a checkpoint's newest line by suite, the invalid ones among them."""
    return {line.suite: line for line in lines if line.checkpoint_digest == checkpoint}
