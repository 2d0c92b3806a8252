"""`stoker rehearse`: a pipeline in small, beside the real one, whose processes are killed."""

from __future__ import annotations

import os
import signal

import click

from stoker.cli.options import FiniteRange, one_line, pipeline_file
from stoker.cli.pipeline.config import checked
from stoker.cli.pipeline.events import Output
from stoker.cli.pipeline.run import STOP_SIGNALS
from stoker.cli.rehearse.figures import strangers, told
from stoker.cli.rehearse.kills import Rehearsal
from stoker.cli.rehearse.scratch import scratch_of
from stoker.cli.worker_jobs import Workers
from stoker.config.schema import Pipeline
from stoker.kit.workers.pool import Activity
from stoker.store.errors import ConfigError, Transient

GPUS = Activity("gpus", "stoker.observe.gpu_worker", silent_s=60.0)


@click.command(epilog="Example: stoker rehearse /etc/stoker/fineweb.yaml --minutes 10")
@pipeline_file
@click.option("--minutes", type=FiniteRange(min=1), default=10.0, help="How long at most.")
@click.pass_context
def rehearse(context: click.Context, pipeline: Pipeline, minutes: float) -> None:
    """Run FILE's pipeline in small and kill its parts, before a month away.

    Model, source, trainer and optimizer are those of FILE; one or two source files are used, and directories
    of its own beside state, hot and warm. Trainer, guard and each daemon are killed once, after progress, and
    must come back. It tells speed, saves, recovery, the time of the whole run, the disks at its end and the
    checkpoint interval that loses least. Nothing is left of it, and a run of FILE is not disturbed.

    Exit codes: 1 something did not come back, or a disk is too small; 69 no room; 75 the GPU is in use, or a
    rehearsal of FILE runs; 78 an external trainer, or a wrong configuration.
    """
    refuse(pipeline)
    with scratch_of(pipeline, minutes) as scratch:
        checked(scratch.pipeline)
        output = Output(scratch.pipeline.layout, headless=False, quiet=False)
        rehearsal = Rehearsal(scratch, output, minutes * 60)
        code = rehearsal.run()
        for signum in STOP_SIGNALS:  # until nothing is left
            signal.signal(signum, signal.SIG_IGN)
        output.close()
        if code:
            context.exit(code)
        seen = rehearsal.measured(pipeline)
    for title, text in told(pipeline, seen):
        click.echo(one_line(f"{title:<19}{text}"))
    context.exit(0 if seen.is_good() else 1)


def refuse(pipeline: Pipeline) -> None:
    """Raises an error where a rehearsal would show nothing, or disturb others."""
    if pipeline.train.command is not None:
        why = "names a trainer of your own, whose files a rehearsal would write among those of its runs"
        raise ConfigError(f"{pipeline.file}: train.command: {why}; kill it by hand under `stoker run`")
    with Workers() as workers:
        found = workers.run(GPUS, {"every_s": 60.0}, "the GPUs cannot be looked at", lambda sample: True)
    if who := strangers(found.get("cards", ()), os.environ.get("CUDA_VISIBLE_DEVICES")):
        raise Transient(f"the GPU is in use: {who}; rehearse once it is free")
