"""`stoker run`: the whole pipeline in the foreground, without systemd."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from stoker.cli.options import pipeline_file, printable
from stoker.cli.pipeline.checks import findings
from stoker.cli.pipeline.foreground import Foreground
from stoker.cli.pipeline.progress import Progress
from stoker.config.document import dotted
from stoker.config.load import load_pipeline, refuse
from stoker.kit.lock import Lock
from stoker.kit.state_owner import take_up_state

COLOURS = {"warning": "yellow", "error": "red"}


@click.command(epilog="Example: stoker run demo-run/demo.yaml --until-done")
@pipeline_file
@click.option("--until-done", is_flag=True, help="End when the training run is finished (0) or failed.")
@click.option("--headless", is_flag=True, help="Plain lines: no colour, nothing for a terminal alone.")
@click.pass_context
def run(context: click.Context, file: Path, until_done: bool, headless: bool) -> None:
    """Run the pipeline of FILE: its three daemons as children, their progress as plain lines.

    Ctrl-C stops all cleanly and waits for the trainer's checkpoint; a second one no longer waits.
    Exit code 75: this pipeline is running already. 78: its configuration is wrong.
    """
    pipeline = load_pipeline(file)
    faults, warnings = findings(pipeline)
    refuse(pipeline, faults)
    take_up_state(pipeline)
    pipeline.runtime.create()
    say = Speaker(colour=not headless and sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    with Lock.acquire(pipeline.layout.run_lock, purpose="stoker run") as lock:
        say("info", f"pipeline {pipeline.name}, state {pipeline.state}, run {pipeline.train.run}")
        for warning in warnings:
            say("warning", f"{dotted(warning.path)}: {printable(warning.text)}")
        progress = Progress(pipeline.layout)

        def tell() -> None:
            for level, line in progress.lines(time.monotonic()):
                say(level, line)

        foreground = Foreground(pipeline, until_done=until_done, say=say, progress=tell)
        code = foreground.run(lock)
        say("info" if code == 0 else "error", f"ended with exit code {code}")
    context.exit(code)


class Speaker:
    """Prints a line with the time of day; goes on in silence when nobody reads any more."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._open = True

    def __call__(self, level: str, line: str) -> None:
        if not self._open:
            return
        if self._colour and level in COLOURS:
            line = click.style(line, fg=COLOURS[level])
        try:
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
        except BrokenPipeError:
            self._open = False
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - or the exit would fail on flushing it
