"""Whether a checkpoint takes the promoted one's place: by the records alone, so a restart decides the same.

Whatever is not proven promotes nothing: doubt, an error, a missing sample, another digest, a lost baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stoker.checkpoints.retention import History, counts
from stoker.config.schema_evaluation import Promote
from stoker.supervise.evaluation.lines import EvaluationLine, newest

Holders = dict[str, list[EvaluationLine]]  # by metric, and by the gate's suite: the lines that have it


@dataclass(frozen=True)
class Promotion:
    """`none`: there is nothing to decide, or not yet; `why` has a sentence for each reason against it."""

    verdict: Literal["promoted", "not_promoted", "none"]
    why: tuple[str, ...] = ()


def in_force(record: Mapping[str, Any] | None, history: History) -> str | None:
    """Returns the digest of the checkpoint that promoted.json names; None past the fork of a rollback.

    Another program may have written it: None where it does not say what is promoted.
    """
    if not record or not record.keys() >= {"step", "checkpoint", "digest"}:
        return None
    if not counts(record.get("timeline", history[0][0]), record["step"], history):
        return None
    return str(record["digest"])


def decide_promotion(
    policy: Promote | None, lines: Sequence[EvaluationLine], candidate: str, promoted: str | None
) -> Promotion:
    """Returns what becomes of a checkpoint, by the lines that count (`read_lines`).

    `candidate` and `promoted` are digests; `promoted` is the checkpoint `in_force`. Before there is one,
    floors and gate are enough, but all that later ones are compared by must be measured.
    """
    if policy is None or candidate == promoted:
        return Promotion("none")
    found = newest(lines, candidate)
    holders: Holders = {
        metric: [line for line in found.values() if metric in line.metrics]
        for metric in (*policy.margins, *policy.floors)
    }
    if policy.gate is not None:
        holders[policy.gate] = [found[policy.gate]] if policy.gate in found else []
    used = {line.suite: line for held in holders.values() for line in held}
    against = [
        *(f"{line.suite} is invalid: {line.invalid}" for line in found.values() if line.invalid),
        *(f"{one.suite} lacks {one.samples_missing} samples" for one in used.values() if one.samples_missing),
        *_unmet(policy, holders),
        *(_unproven(policy, holders, lines, promoted) if promoted is not None else ()),
    ]
    if against:
        return Promotion("not_promoted", tuple(against))
    if waits := [name for name, held in holders.items() if not held]:
        return Promotion("none", (f"not measured yet: {', '.join(waits)}",))
    return Promotion("promoted")


def regressed(policy: Promote | None, lines: Iterable[EvaluationLine], promoted: str | None) -> list[str]:
    """Returns the metrics by which a checkpoint with these lines is worse than the promoted one."""
    return [
        metric
        for line in lines
        if policy is not None and line.baseline == promoted and line.invalid is None
        for metric in policy.margins
        if metric in line.verdicts and line.verdicts[metric].verdict == "worse"
    ]


def _unmet(policy: Promote, holders: Holders) -> Iterator[str]:
    """Yields the floors and the gate that a checkpoint does not reach."""
    for metric, floor in policy.floors.items():
        for found in (line.metrics[metric] for line in holders[metric]):
            value, sign = found.value, 1 if found.higher_is_better else -1
            if value is None or sign * value < sign * floor:
                yield f"{metric} is {value}, worse than its floor {floor:g}"
    for gate in (line.gate or {"passed": 0, "of": 0} for line in holders.get(policy.gate or "", ())):
        if not 0 < gate["of"] == gate["passed"]:
            yield f"{gate['passed']} of {gate['of']} cases of the gate {policy.gate} passed"


def _unproven(
    policy: Promote, holders: Holders, lines: Sequence[EvaluationLine], promoted: str
) -> Iterator[str]:
    """Yields what the comparison with the promoted checkpoint does not show."""
    # Results under another digest are of other documents, or of other code: they are not comparable.
    whole = {
        line.suite_digest
        for line in lines
        if line.checkpoint_digest == promoted and line.invalid is None and not line.samples_missing
    }
    for metric in policy.margins:
        enough = ("better",) if metric == policy.primary else ("better", "not_worse")
        for line in holders[metric]:
            shown = line.verdicts.get(metric)
            if line.baseline != promoted or line.suite_digest not in whole or shown is None:
                yield f"{metric} is not compared with the promoted checkpoint: it lacks comparable results"
            elif shown.verdict not in enough:
                yield f"{metric} is {shown.verdict}, and must be {' or '.join(enough)}"
