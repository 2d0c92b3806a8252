"""`stoker train`: one training run in the foreground, by the train supervisor alone."""

from __future__ import annotations

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.config import checked
from stoker.cli.pipeline.events import Output
from stoker.cli.pipeline.run import Foreground, summary_lines
from stoker.config.schema import Pipeline
from stoker.kit.daemon import COMMAND_PURPOSE
from stoker.kit.lock import Lock, take_up_state
from stoker.store.layout import TRAIN_SUPERVISOR


@click.command(epilog="Example: stoker train demo-run/demo.yaml --until 100")
@pipeline_file
@click.option("--until", metavar="STEP", type=click.IntRange(1), help="Seal a checkpoint at STEP and end.")
@click.option("--headless", is_flag=True, help="Print on a terminal what a file or a pipe would get.")
@click.pass_context
def train(context: click.Context, pipeline: Pipeline, until: int | None, headless: bool) -> None:
    """Train FILE's run here, to its end or to Ctrl-C, without systemd and without the other daemons.

    This is the train supervisor with the same locks, records and checkpoints, so that a daemon can continue
    from where this ends, and this from where a daemon was stopped. It waits for data that no daemon prepares.
    Ctrl-C seals a checkpoint and ends (0); a second Ctrl-C does not wait. Exit code 75: the train supervisor
    of this pipeline is running already. 70: the run is halted. Any other is that of a run that failed.
    """
    warnings = checked(pipeline)
    take_up_state(pipeline)
    # Refused here and not by the supervisor alone: the one that runs may be writing to its log.
    Lock.acquire(pipeline.layout.lock(TRAIN_SUPERVISOR), purpose=COMMAND_PURPOSE).release()
    pipeline.runtime.create()
    output = Output(pipeline.layout, headless=headless, quiet=False)
    for warning in warnings:
        output.say("warning", warning)
    once = ("--once", *(("--until", str(until)) if until is not None else ()))
    code = Foreground(pipeline, output, names=(TRAIN_SUPERVISOR,), once=once).run()
    output.close()
    output.write("".join(f"{line}\n" for line in summary_lines(pipeline)).encode())
    context.exit(code)
