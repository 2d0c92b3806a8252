"""`stoker pause` and `stoker resume`: ask the train supervisor to stop training, and to go on."""

from __future__ import annotations

from typing import Any

import click

from stoker.cli.ask_daemon import ask
from stoker.cli.options import json_option, pipeline_file, print_json
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.store.requests import waiting_requests
from stoker.supervise.run.record import parse_record

EXIT_REFUSED = 65


@click.command(epilog="Example: stoker pause /etc/stoker/fineweb.yaml")
@pipeline_file
@json_option
def pause(pipeline: Pipeline, as_json: bool) -> int:
    """Have the trainer seal a checkpoint and end, and start none until `stoker resume`.

    The run stays paused over restarts. A train supervisor that is not running is paused at its next start.
    """
    return _ask(pipeline, "pause", as_json=as_json)


@click.command(epilog="Example: stoker resume /etc/stoker/fineweb.yaml")
@pipeline_file
@json_option
def resume(pipeline: Pipeline, as_json: bool) -> int:
    """Continue a run that is paused, or that is halted for want of progress.

    It also continues a run that an external trainer has finished. A changed pipeline file is read by
    `stoker reload` or a restart, not by this; both continue a halted run, too. A train supervisor that is
    not running continues at its next start.
    """
    return _ask(pipeline, "resume", as_json=as_json)


def _ask(pipeline: Pipeline, verb: str, *, as_json: bool) -> int:
    if not pipeline.layout.run(pipeline.train.run).root.exists():
        read_identity(pipeline.layout, pipeline.train.run)  # raises UsageError: the run has not begun

    def judge() -> dict[str, Any] | None:
        path = pipeline.layout.run(pipeline.train.run).record
        if verb != "pause" or not path.exists() or waiting_requests(pipeline.layout, TRAIN_SUPERVISOR)[0]:
            return None  # what waits may begin the run again
        record = parse_record(read_record(path), path)
        return {"refused": f"the run is {record.state}"} if record.is_over else None

    outcome = ask(pipeline, TRAIN_SUPERVISOR, verb, {}, quiet=as_json, judge=judge)
    if as_json:
        print_json(outcome)
    elif "refused" in outcome:
        click.echo(f"stoker: {verb} is refused: {outcome['refused']}", err=True)
    elif "paused" in outcome:
        click.echo("paused; the trainer seals a checkpoint and ends" if outcome["trains"] else "paused")
    elif "resumed" in outcome:
        click.echo("the run continues" if outcome["resumed"] else "the run is neither paused nor halted")
    return EXIT_REFUSED if "refused" in outcome else 0
