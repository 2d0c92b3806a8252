"""`stoker runs`: shows the launches of a run, how each ended, and where the run's time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from stoker.cli.complete import run_option
from stoker.cli.options import answer, json_option, pipeline_file
from stoker.cli.pipeline.status import spent_line
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.config.units import format_duration
from stoker.observe.status import read_status
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_whole
from stoker.supervise.run.goodput import read_account
from stoker.supervise.run.launch_ends import LaunchEnd, parse_end, read_ends

HEAD = ("launch", "time", "steps", "good", "end")


@click.command(epilog="Example: stoker runs /etc/stoker/fineweb.yaml")
@pipeline_file
@run_option
@json_option
def runs(pipeline: Pipeline, run: str | None, as_json: bool) -> None:
    """Show each launch: when, how long, its steps, its goodput, the class of its end; what of it was lost.

    The time of a launch includes what lies between it and the one before. The last launch has its share once
    it is proven what it left. Reads only, and may run beside the daemons.
    """
    report = look(pipeline, run or pipeline.train.run)
    answer(report, report_lines(report), as_json=as_json)


def look(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """Returns the report, from the state directory alone."""
    read_identity(pipeline.layout, run)
    books = read_whole(pipeline.layout.run(run).goodput) or {}
    found, damage = launches_of(pipeline, run, books)
    return {
        "v": 1,
        "pipeline": pipeline.name,
        "run": run,
        "launches": found,
        "account": read_account(books["account"]).figures() if books else None,
        "damage": list(damage),
    }


def launches_of(
    pipeline: Pipeline, run: str, books: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Returns the run's launches, and the damage of their log; `books` is goodput.json, {} without one."""
    ends, damage = read_ends(pipeline.layout.run(run).runs)
    found = [_launch(one) for one in ends]
    if books.get("launch") is not None:
        one, body = parse_end(books["launch"]), read_status(pipeline.layout)[TRAIN_SUPERVISOR]
        if one.launch not in {each.launch for each in ends}:
            is_running = body["running"] and body["body"].get("launch") == one.launch
            found.append(_launch(one) | {"is_running": is_running})
    return found, damage


def _launch(one: LaunchEnd) -> dict[str, Any]:
    return {**asdict(one), "wall_s": one.wall_s, "goodput": one.goodput, "is_running": False}


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    found, account = report["launches"], report["account"]
    yield f"run {report['run']} of {report['pipeline']}: {len(found):,} launched"
    if account and account["wall_s"]:
        yield f"  goodput {spent_line(account)}"
    rows = [HEAD, *map(row_of, found)]
    name, lasted, steps = (max(len(row[at]) for row in rows) for at in range(3))  # 60 columns mostly
    line = f"{{:<{name}}} {{:>{lasted}}}  {{:>{steps}}}{{:>6}} {{}}"  # a launch's name has its begin in it
    if found:
        yield line.format(*HEAD)
    for one, row in zip(found, rows[1:], strict=True):
        yield line.format(*row).rstrip()
        if (proven := one["proven_step"]) is not None and proven < one["last_step"]:
            yield f"    proven to step {proven:,}; {_redone(one)} in steps made again"
    for what in report["damage"]:
        yield f"  runs.jsonl is damaged: {what}"


def row_of(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a launch, those of HEAD."""
    end = one["exit_class"] or ("running" if one["is_running"] else "not known")
    lasted = share = ""
    if one["goodput"] is not None:
        lasted, share = format_duration(one["wall_s"]), f"{100 * one['goodput']:.0f} %"
    return one["launch"], lasted, f"{one['resume_step']:,}-{one['last_step']:,}", share, end


def _redone(one: Mapping[str, Any]) -> str:
    return format_duration(one["seconds"].get("redone", 0.0))
