"""`stoker report`: one page on a pipeline, to read on a phone, to keep or to send."""

from __future__ import annotations

import os
from pathlib import Path

import click

from stoker.cli.options import PATH, one_line, pipeline_file
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.store.errors import UsageError
from stoker.store.files import write_atomic


@click.command(epilog="Example: stoker report /etc/stoker/fineweb.yaml -o fineweb.html")
@pipeline_file
@click.option(
    "--output",
    "-o",
    metavar="HTML",
    type=PATH,
    help="Write this file, or - for standard output. Default: NAME-report.html in the working directory.",
)
def report(pipeline: Pipeline, output: Path | None) -> None:
    """Write one HTML page: whether all is well, then the run and its machine in pictures and tables.

    The page has the verdict and what needs a hand; loss by timeline, throughput, where the time went,
    launches, memory by role, GPUs, disks and quarantine. It loads nothing, so it can be sent as it is. Reads
    the state directory alone; what cannot be read is said in its place. An existing file is replaced.
    """
    # What a link leads to is replaced, not the link.
    target = Path(os.path.realpath(output or f"{pipeline.name}-report.html"))
    is_shown = output == Path("-")
    if not is_shown and (not target.parent.is_dir() or (target.exists() and not target.is_file())):
        raise UsageError(f"{target} cannot be written as a file; name one in a directory that exists, or -")
    from stoker.cli.report.page import as_html
    from stoker.cli.report.sections import sections_of

    page = as_html(pipeline, sections_of(pipeline))
    if is_shown:
        click.echo(page, nl=False)
        return
    write_atomic(target, page)
    click.echo(one_line(f"wrote {target}, {format_bytes(len(page))}"))
