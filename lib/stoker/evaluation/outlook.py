"""What `stoker config check` says of suites: which are wrong, and how small a difference each can show."""

from __future__ import annotations

import math
from pathlib import Path

from stoker.cli.options import did_you_mean
from stoker.config.checks import Fault
from stoker.config.document import Unreadable, read_document
from stoker.config.schema import Pipeline
from stoker.evaluation.compare import smallest_difference
from stoker.evaluation.suite import Suite, read_suite
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.errors import DataError
from stoker.supervise.evaluation.lines import read_lines

Z95 = 1.96  # half a 95 % interval, in standard errors
TEXT = "{}: {} documents show a difference from {:.3g} on"
LOW = "{2:g} is below {1:.3g}, the smallest difference that {0} documents show: most verdicts would be doubt"
# By metric: how many documents, and the smallest difference that they show; inf: none, or not known yet.
Shown = dict[str, tuple[int, float]]


def outlook(pipeline: Pipeline) -> tuple[list[Fault], list[Fault], list[str]]:
    """Returns faults, warnings, and a line for each metric, by the suites' files and what was recorded."""
    faults, shown = list[Fault](), Shown()
    for number, entry in enumerate(pipeline.evaluations):
        try:
            suite = read_suite(entry.suite)
        except DataError as error:
            return [Fault(("evaluations", number, "suite"), str(error))], [], []
        for task in suite.tasks:
            shown |= _by_data(suite, task)
    promote, run = pipeline.promote, pipeline.layout.run(pipeline.train.run)
    margins, floors = ({}, {}) if promote is None else (promote.margins, promote.floors)
    of_harness = tuple(name for name in shown if "/" not in name)
    for metric in {**margins, **floors}:
        if metric not in shown and not metric.startswith(of_harness):
            hint = did_you_mean(metric, shown, f"they measure {', '.join(shown)}")
            faults.append(Fault(("promote",), f"{metric} is measured by none of evaluations; {hint}"))
    for line in read_lines(run.evaluations_log, ancestry(read_timelines(run.timelines)))[0]:
        for metric, verdict in line.verdicts.items():
            # Without any spread the two were alike, which says nothing of other checkpoints.
            if spread := (verdict.high - verdict.low) / 2 / Z95 * math.sqrt(verdict.n):
                shown[metric] = (verdict.n, smallest_difference(verdict.n, spread))
    known = {metric: each for metric, each in shown.items() if each[1] < math.inf}
    low = {metric: each for metric, each in known.items() if 0 < margins.get(metric, 0) < each[1]}
    warnings = [
        Fault(("promote", "guards", metric), LOW.format(*each, margins[metric]))
        for metric, each in low.items()
    ]
    return faults, warnings, [TEXT.format(metric, *each) for metric, each in known.items()]


def _by_data(suite: Suite, task: str) -> Shown:
    """Returns what a task of the suite's own can show by its data; by its name alone one of the harness."""
    try:
        file = (suite.include or Path()) / f"{task}.yaml"
        body = read_document(file).values
        lines = (file.parent / body["dataset_kwargs"]["file"]).read_bytes().splitlines()
        n = len(lines[: suite.limit])
        names = [metric["metric"] for metric in body["metric_list"]]
    except (OSError, Unreadable, KeyError, TypeError):
        return {task: (0, math.inf)}
    # How much texts differ only a comparison tells; a prompt case passes or fails.
    least = smallest_difference(n, None) if body.get("output_type") == "generate_until" else math.inf
    return {f"{task}/{name}": (n, least) for name in names}
