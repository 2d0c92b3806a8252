"""`stoker top`: shows a pipeline on the whole terminal, and goes on showing it."""

from __future__ import annotations

import os

import click

from stoker.cli.options import pipeline_file
from stoker.config.schema import Pipeline
from stoker.store.errors import UsageError

STREAMS = (0, 1, 2)  # Textual reads keys from standard input, and draws on standard error


@click.command(epilog="Example: stoker top /etc/stoker/fineweb.yaml")
@pipeline_file
def top(pipeline: Pipeline) -> int:
    """Show the pipeline on the whole terminal, renewed every 2 seconds, until q or Ctrl-C.

    Pages: overview (verdict, what needs a hand, daemons, times left), data, training with the curves of loss
    and speed, launches, events, memory and GPUs. Keys stand on the first and the last line. Reads the files
    alone, as `stoker status` does.
    """
    if not all(map(os.isatty, STREAMS)) or os.environ.get("TERM", "dumb") == "dumb":
        instead = f"`stoker status {pipeline.file}` prints the same once"
        raise UsageError(f"`stoker top` needs a terminal as input, output and standard error; {instead}")
    from stoker.cli.top.pages import Reading

    reading = Reading(pipeline)  # before the screen is taken: what cannot be read is said as ever
    from stoker.cli.top.app import Top

    app = Top(reading)
    app.run(mouse=False)
    return app.return_code or 0
