"""`stoker schedule`: shows a run's phases and learning rate by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from stoker.cli.options import answer, json_option, planned_file
from stoker.cli.pipeline.beside import whole_run
from stoker.config.schema import Pipeline
from stoker.config.units import format_count
from stoker.supervise.run.launch_record import schedule_body
from stoker.training.steps.schedule import Schedule

LINE = "{:>11}  {:>10}  {:>6}  {:>7}  {:>7}  {}"
HEAD = ("step", "rate", "batch", "seq_len", "tokens", "phase")
BETWEEN = 8  # parts of the run, with a row at the end of each
WIDTH, HEIGHT = 64, 6  # of the curve, in characters


@click.command(epilog="Example: stoker schedule /etc/stoker/fineweb.yaml")
@planned_file
@json_option
def schedule(pipeline: Pipeline, as_json: bool) -> None:
    """Show phases, learning rate, batch, length and tokens by step, and a curve of the rate.

    It shows what the file says from the first step to the last, not what a run has seen whose settings were
    other ones once. A row has the settings of its step, and the tokens up to its end.
    """
    train, steps = pipeline.train, whole_run(pipeline)[0]
    body = schedule_body(train.schedule, steps)
    rates = Schedule.parse(body, peak=train.optimizer.lr, horizon=steps)
    begun = (one.start + 1 for one in train.settings)
    changes = {1, train.schedule.warmup_steps, body.get("decay_begins", steps), *begun}
    changes |= {steps * part // BETWEEN for part in range(BETWEEN + 1)}
    rows = []
    for step in sorted(step for step in changes if 1 <= step <= steps):
        now, tokens = train.at(step - 1), train.tokens_of(0, step)
        named = {"step": step, "lr": rates.rate(step), "phase": now.name, "tokens": tokens}
        rows.append({**named, "global_batch": now.global_batch, "seq_len": now.seq_len})
    curve = [rates.rate(1 + (steps - 1) * place // (WIDTH - 1)) / rates.peak for place in range(WIDTH)]
    report = {"v": 1, "pipeline": pipeline.name, "run": train.run, "steps": steps, "rows": rows}
    answer(report, [*_lines(report), "", *_curve(curve, rates.peak, steps)], as_json=as_json)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"run {report['run']} of {report['pipeline']}: {report['steps']:,} steps"
    yield LINE.format(*HEAD)
    for row in report["rows"]:
        figures = f"{row['step']:,}", f"{row['lr']:.3g}", row["global_batch"], row["seq_len"]
        yield LINE.format(*figures, format_count(row["tokens"]), row["phase"]).rstrip()


def _curve(shares: list[float], peak: float, steps: int) -> Iterator[str]:
    """Yields the lines of a curve over the steps, of shares of the peak rate."""
    for row in range(HEIGHT, 0, -1):
        bars = "".join("#" if share * HEIGHT > row - 0.5 else " " for share in shares)
        yield f"{f'{peak:.3g}' if row == HEIGHT else '':>11}  {bars}".rstrip()
    yield f"{'step':>11}  {'1':<{WIDTH // 2}}{f'{steps:,}':>{WIDTH // 2}}"
