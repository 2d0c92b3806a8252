"""`stoker run`: the whole pipeline in the foreground, without systemd."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.checks import checked
from stoker.cli.pipeline.foreground import Foreground
from stoker.cli.pipeline.output import Output
from stoker.cli.pipeline.summary import summary_lines
from stoker.kit.lock import Lock
from stoker.kit.state_owner import take_up_state


@click.command(epilog="Example: stoker run demo-run/demo.yaml --until-done")
@pipeline_file
@click.option("--until-done", is_flag=True, help="End when the training run is finished (0) or failed.")
@click.option("--headless", is_flag=True, help="Print on a terminal what a file or a pipe would get.")
@click.option("--quiet", "-q", is_flag=True, help="Print warnings, errors and the summary at the end alone.")
@click.pass_context
def run(context: click.Context, file: Path, until_done: bool, headless: bool, quiet: bool) -> None:
    """Run the pipeline of FILE: its three daemons as children, and tell what they do.

    A terminal shows sentences and a live line a daemon; a file or a pipe gets key=value lines.
    Ctrl-C stops all cleanly and waits for the trainer's checkpoint; a second one no longer waits.
    Exit code 75: this pipeline is running already. 78: its configuration is wrong.
    """
    pipeline, warnings = checked(file)
    take_up_state(pipeline)
    pipeline.runtime.create()
    output = Output(pipeline.layout, headless=headless, quiet=quiet)
    with Lock.acquire(pipeline.layout.run_lock, purpose="stoker run") as lock:
        output.say("info", f"pipeline {pipeline.name}, state {pipeline.state}, run {pipeline.train.run}")
        for warning in warnings:
            output.say("warning", warning)
        code = Foreground(pipeline, output, until_done=until_done).run(lock)
        output.close()
        output.say("info" if code == 0 else "error", f"ended with exit code {code}")
        output.write("".join(f"{line}\n" for line in summary_lines(pipeline)).encode())
    context.exit(code)
