"""`stoker download`: the download watchdog in the foreground, or what it would have to do."""

from __future__ import annotations

import os
import sys

import click

from stoker.cli.data.dry_run import dry_run_of
from stoker.cli.options import pipeline_file
from stoker.config.schema import Pipeline
from stoker.store.errors import UsageError


@click.command(epilog="Example: stoker download /etc/stoker/fineweb.yaml --once")
@pipeline_file
@click.option("--once", is_flag=True, help="End when all that can be had is here.")
@click.option("--dry-run", is_flag=True, help="Only tell: what, how much is here, how long the rest takes.")
def download(pipeline: Pipeline, once: bool, dry_run: bool) -> int:
    """Run the download watchdog of FILE alone: bring every file of its source, prove it, keep it true.

    A terminal shows how far it is; anything else gets a plain line for each fact. Ctrl-C stops it at once,
    and nothing that came is lost. A folder's files are hashed where they are.

    --dry-run asks the source, reads a few seconds' worth to measure the rate, locks and writes nothing.

    Exit codes: 1 files were given up or are rotten, with --once; 69 the source cannot be had; 75 a watchdog
    of this pipeline runs already, or --once was stopped before its end; 78 configuration.
    """
    if dry_run:
        if once:
            raise UsageError("--once and --dry-run: give one of them")
        return dry_run_of(pipeline)
    # In our place: so signals, the terminal and the exit code are the daemon's own.
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "stokerd.download_watchdog", *(["--once"] if once else [])]
    os.execv(sys.executable, [*command, "--", str(pipeline.file)])  # noqa: S606 - an argument list, no shell
    raise AssertionError("execv does not return")
