"""`stoker evaluations`: shows what each suite measured of the run's checkpoints, and what that promoted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from stoker.cli.complete import run_option
from stoker.cli.options import answer, json_option, one_line, pipeline_file, plural
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.plan.timelines import ancestry, read_timelines
from stoker.supervise.evaluation.lines import EvaluationLine, read_lines

Z95 = 1.96  # standard errors on each side of a value: its 95 % interval
LINE = "{:>11}  {:<28}  {:<17}  {:<34}  {}"
HEAD = ("step", "metric", "value", "against the promoted one", "promotion")
UNKNOWN = ("value", "stderr", "n", "higher_is_better", "verdict", "difference", "low", "high")


@click.command(epilog="Example: stoker evaluations /etc/stoker/fineweb.yaml --tsv > evaluations.tsv")
@pipeline_file
@run_option
@json_option
@click.option("--tsv", "as_tsv", is_flag=True, help="Print a table with a tab between columns.")
def evaluations(pipeline: Pipeline, run: str | None, as_json: bool, as_tsv: bool) -> None:
    """Show what each suite measured of the run's checkpoints.

    A row has a metric's value, the verdict on it against the checkpoint that was promoted then, by how much
    it was better, and whether that promoted the checkpoint, or why not. Numbers have their 95 % interval.
    What a rollback has abandoned is left out. Reads records alone, and may run beside the daemons.
    """
    report = look(pipeline, run or pipeline.train.run)
    if as_json or not as_tsv:
        answer(report, report_lines(report), as_json=as_json)
        return
    rows = report["evaluations"]
    for cells in (*rows[:1], *(row.values() for row in rows)):  # the first: its keys
        click.echo("\t".join(one_line("" if cell is None else str(cell)) for cell in cells))


def look(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """Returns the report, from the run's directory alone."""
    read_identity(pipeline.layout, run)
    layout = pipeline.layout.run(run)
    lines, damage = read_lines(layout.evaluations_log, ancestry(read_timelines(layout.timelines)))
    by_suite = sorted(lines, key=lambda one: one.suite)
    rows = [_row(one, metric) for one in by_suite for metric in one.metrics or ("",)]
    return {"v": 1, "pipeline": pipeline.name, "run": run, "evaluations": rows, "damage": list(damage)}


def _row(line: EvaluationLine, metric: str) -> dict[str, Any]:
    """Returns the cells of a metric; without one those of an evaluation that measured nothing."""
    row = {"suite": line.suite, "step": line.step, "timeline": line.timeline, "metric": metric}
    row |= dict.fromkeys(UNKNOWN)
    for found in (line.metrics.get(metric), line.verdicts.get(metric)):
        row |= vars(found) if found is not None else {}
    return {**row, "invalid": line.invalid, "promotion": line.promotion, "why": "; ".join(line.why)}


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    rows, suite = report["evaluations"], None
    yield f"run {report['run']} of {report['pipeline']}: {plural(len(rows), 'result')} of evaluations"
    if rows:
        yield LINE.format(*HEAD)
    for row in rows:
        if row["suite"] != suite:
            suite = row["suite"]
            yield suite
        yield LINE.format(*_cells(row)).rstrip()
    for what in report["damage"]:
        yield f"  evaluations.jsonl is damaged: {what}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    value = "no value" if row["value"] is None else f"{row['value']:.4f}"
    value += f" ± {Z95 * row['stderr']:.4f}" if row["stderr"] is not None else ""
    shown = f"invalid: {row['invalid']}" if row["invalid"] else row["verdict"] or ""
    if row["difference"] is not None:
        shown += " {difference:+.4f} ({low:+.4f} to {high:+.4f})".format_map(row)
    promotion = {"promoted": "promoted", "not_promoted": "no: "}.get(row["promotion"], "") + row["why"]
    return f"{row['step']:,}", row["metric"], value, shown, promotion
