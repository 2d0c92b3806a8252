"""`stoker checkpoint`: shows the checkpoints of a run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from stoker.checkpoints.format import BODY, known_step
from stoker.checkpoints.mirror.layout import Mirrored
from stoker.checkpoints.retention import CheckpointEntry, counts, find_checkpoints
from stoker.cli.complete import run_option
from stoker.cli.options import answer, json_option, pipeline_file, plural
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_duration
from stoker.observe.status import read_status
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_whole
from stoker.supervise.run.early_stop import newest_evaluation, read_evaluations
from stoker.supervise.run.horizon import milestones
from stoker.supervise.run.launch_record import read_launches

LINE = "{:>11}  {:>8}  {:>10}  {:>10}  {:>8}  {:>16}  {}"
HEAD = ("step", "timeline", "size", "age", "loss", "held-out", "")


@click.command("list", epilog="Example: stoker checkpoint list /etc/stoker/fineweb.yaml")
@pipeline_file
@run_option
@json_option
def list_(pipeline: Pipeline, run: str | None, as_json: bool) -> None:
    """Show each checkpoint of the run.

    A row has its step, timeline, size, age and losses, and whether it is proven, mirrored, a milestone.
    Proven is what the train supervisor has proven since its start. Reads only the bodies of the checkpoints.
    """
    report = look(pipeline, run or pipeline.train.run)
    answer(report, report_lines(report), as_json=as_json)


def look(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """Returns the report, from the run's directory and the supervisor's last status."""
    read_identity(pipeline.layout, run)
    layout, body = pipeline.layout.run(run), read_status(pipeline.layout)[TRAIN_SUPERVISOR]["body"]
    listed = read_whole(layout.mirror) or {"copies": ()}
    copies = {Mirrored.parse(copy).name for copy in listed["copies"]}
    proven = set(body.get("proven", ())) if body.get("run") == run else set()
    kept = milestones(read_launches(layout.launches)[0]) | pipeline.train.milestones
    history = ancestry(read_timelines(layout.timelines))
    found = sorted(find_checkpoints(layout.checkpoints), key=lambda one: one.step)
    rows = [_row(one, copies) for one in found]
    evaluations = read_evaluations(layout.metrics, history)
    for one, row in zip(found, rows, strict=True):
        row["proven"], row["milestone"] = one.path.name in proven, one.step in kept
        row["in_history"] = one.timeline is None or counts(one.timeline, one.step, history)
        if row["in_history"] and (evaluated := newest_evaluation(evaluations, one.step)):
            row["val_step"], row["val_loss"] = evaluated  # of its own step, though it was sealed before
    return {"v": 1, "pipeline": pipeline.name, "run": run, "checkpoints": rows}


def _row(one: CheckpointEntry, copies: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": one.step, "path": str(one.path), "readable": one.body is not None}
    known = dict.fromkeys(("timeline", "bytes", "sealed_at", "loss", "val_loss", "val_step", "is_step_known"))
    if one.body is None:
        return {**row, **known, "mirrored": False}
    file = one.path / BODY
    copy = Mirrored.of(one.body.raw, hashlib.sha256(file.read_bytes()).hexdigest())
    known |= {"timeline": one.body.timeline, "bytes": one.body.bytes, "sealed_at": file.stat().st_mtime}
    known |= {name: one.body.raw.get(name) for name in ("loss", "val_loss")}
    known["is_step_known"] = known_step(one.body.raw) is not None
    return {**row, **known, "mirrored": copy.name in copies}


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    rows = report["checkpoints"]
    size = format_bytes(sum(row["bytes"] or 0 for row in rows))
    yield f"run {report['run']} of {report['pipeline']}: {plural(len(rows), 'checkpoint')}, {size}"
    if rows:
        yield LINE.format(*HEAD).rstrip()
    for row in rows:
        yield LINE.format(*_figures(row), ", ".join(_words(row)))


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    if not row["readable"]:
        return f"{row['step']:,}", *[""] * 5
    age = format_duration(time.time() - row["sealed_at"])
    loss, held_out = (f"{row[name]:.4f}" if row[name] is not None else "" for name in ("loss", "val_loss"))
    if row["val_step"] not in (None, row["step"]):
        held_out += f" at {row['val_step']:,}"
    return f"{row['step']:,}", str(row["timeline"]), format_bytes(row["bytes"]), age, loss, held_out


def _words(row: Mapping[str, Any]) -> Iterator[str]:
    if not row["readable"]:
        yield "its checkpoint.json cannot be read"
        return
    yield "proven" if row["proven"] else "sealed"
    yield from (name for name in ("mirrored", "milestone") if row[name])
    if not row["is_step_known"]:
        yield "its step is unknown"
    if not row["in_history"]:
        yield "abandoned by a rollback"
