"""`stoker run`: the whole pipeline in the foreground, without systemd."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.config import checked
from stoker.cli.pipeline.foreground import Foreground
from stoker.cli.pipeline.output import Output
from stoker.cli.pipeline.status import losses
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock, take_up_state
from stoker.observe.status import read_status
from stoker.store.layout import TRAIN_SUPERVISOR

PROMPT = "Once upon a time"


@click.command(epilog="Example: stoker run demo-run/demo.yaml --until-done")
@pipeline_file
@click.option("--until-done", is_flag=True, help="End when the training run is finished (0) or failed.")
@click.option("--headless", is_flag=True, help="Print on a terminal what a file or a pipe would get.")
@click.option("--quiet", "-q", is_flag=True, help="Print warnings, errors and the summary at the end alone.")
@click.pass_context
def run(context: click.Context, pipeline: Pipeline, until_done: bool, headless: bool, quiet: bool) -> None:
    """Run the three daemons of FILE's pipeline as children, and show their work.

    A terminal shows sentences and a live line per daemon; a file or a pipe gets key=value lines. Ctrl-C stops
    all cleanly and waits for the trainer's checkpoint; a second Ctrl-C does not wait. Exit code 75: this
    pipeline is running already. 78: its configuration is wrong.
    """
    warnings = checked(pipeline)
    take_up_state(pipeline)
    pipeline.runtime.create()
    output = Output(pipeline.layout, headless=headless, quiet=quiet)
    with Lock.acquire(pipeline.layout.run_lock, purpose="stoker run"):
        output.say("info", f"pipeline {pipeline.name}, state {pipeline.state}, run {pipeline.train.run}")
        for warning in warnings:
            output.say("warning", warning)
        code = Foreground(pipeline, output, until_done=until_done).run()
        output.close()
        output.say("info" if code == 0 else "error", f"ended with exit code {code}")
        output.write("".join(f"{line}\n" for line in summary_lines(pipeline)).encode())
    context.exit(code)


def summary_lines(pipeline: Pipeline) -> Iterator[str]:
    """Yields the train supervisor's last status as lines, and a command that generates text."""
    body = read_status(pipeline.layout)[TRAIN_SUPERVISOR]["body"]
    checkpoint = body.get("checkpoint")
    if checkpoint is None:
        yield "no checkpoint yet"
        return
    place = pipeline.layout.run(pipeline.train.run).checkpoints / checkpoint["name"]
    yield f"step        {body['step']:,} of {body['steps']:,}"
    if told := losses(body):
        yield f"loss        {told}"
    yield f"tokens      {body['tokens'] or 0:,} trained on"
    yield f"checkpoint  step {checkpoint['step']:,}: {place}"
    # By its name if the shell finds this program by its name, else by its path.
    found = shutil.which("stoker")
    program = "stoker" if found and Path(found).samefile(sys.argv[0]) else sys.argv[0]
    yield f"try it      {shlex.join([program, 'generate', str(place), '--prompt', PROMPT])}"
