"""`stoker report`: one page on a pipeline, to read on a phone, to keep or to send."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.options import PATH, one_line, pipeline_file
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.store.errors import UsageError
from stoker.store.files import write_atomic

STDOUT = Path("-")


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
    target = output or Path(f"{pipeline.name}-report.html")
    if target != STDOUT:
        target = _writable(target)
    from stoker.cli.report.page import as_html
    from stoker.cli.report.sections import sections_of

    page = as_html(pipeline, sections_of(pipeline))
    if target == STDOUT:
        click.echo(page, nl=False)
        return
    write_atomic(target, page)
    click.echo(one_line(f"wrote {target}, {format_bytes(len(page))}"))


def _writable(target: Path) -> Path:
    """Returns the file to replace; raises UsageError where a rename would replace something else."""
    if target.is_dir():
        raise UsageError(f"{target} is a directory; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no directory; make it, or name a file elsewhere")
    if target.is_file():
        return target.resolve()  # what a link leads to
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} is no regular file; name one, or - for standard output")
    return target
