"""`stoker data download`: runs the download watchdog in the foreground, or estimates its work and time."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

import click

from stoker.cli.data.list_source import Listed, list_source
from stoker.cli.options import data_file, plural
from stoker.config.places import existing
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.decide import speaks_of
from stoker.corpus.http.client import HttpClient
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import REFUSALS, FetchFailed, PartialContent, judge
from stoker.corpus.records.receipts import Receipt, read_receipts
from stoker.corpus.source.folder import DEFAULT_INCLUDE
from stoker.store.errors import UnavailableError, UsageError
from stoker.store.files import inside

SHOWN_REFUSED = 5
EXIT_UNAVAILABLE = 69
KINDS = ("here, hashed", "released", "given up", "to be hashed", "to be fetched")


@click.command(epilog="Example: stoker data download /etc/stoker/fineweb.yaml --once")
@data_file
@click.option("--once", is_flag=True, help="End when all that can be had is here.")
@click.option(
    "--dry-run", is_flag=True, help="Only list the files and their sizes, and ask for the first of the rest."
)
def download(pipeline: Pipeline, once: bool, dry_run: bool) -> int:
    """Run the download watchdog of FILE alone: fetch every file of its source, prove it, keep it true.

    A terminal shows progress; other output gets a plain line for each fact. Ctrl-C stops at once and loses no
    fetched data. A folder's files are hashed in place.

    --dry-run lists the source and asks for the first file to be fetched; it locks and writes nothing.

    Exit codes: 1 files were given up or are rotten, with --once; 69 the source is not available; 75 a
    watchdog of this pipeline runs already, or --once was stopped before its end; 78 configuration.
    """
    if dry_run:
        if once:
            raise UsageError("--once and --dry-run: give one of them")
        return dry_run_of(pipeline)
    # The daemon replaces this process: so signals, the terminal and the exit code are the daemon's own.
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "stokerd.download_watchdog", *(["--once"] if once else [])]
    os.execv(sys.executable, [*command, "--", str(pipeline.file)])  # noqa: S606 - an argument list, no shell
    raise AssertionError("execv does not return")


def _told(sizes: Sequence[int | None]) -> str:
    """Returns the number of files, the sum of known sizes, and the number of unknown sizes."""
    unsized = sum(size is None for size in sizes)
    more = f" and {unsized:,} of unknown size" if unsized else ""
    return f"{plural(len(sizes), 'file')}, {format_bytes(sum(size or 0 for size in sizes))}{more}"


def dry_run_of(pipeline: Pipeline) -> int:
    """Prints the listing and the estimate; returns 69 where files are listed but the source refuses them.

    Raises UnavailableError where the listing is empty.
    """
    listed = list_source(pipeline)
    if not listed.files:
        click.echo("\n".join(_refusals(listed)), nl=bool(listed.refused))
        globs = ", ".join(pipeline.dataset.source.include or DEFAULT_INCLUDE)
        raise UnavailableError(
            f"{listed.origin} holds no file that matches {globs}; correct dataset.source.include and exclude"
        )
    receipts = read_receipts(pipeline.layout, pipeline.dataset.name)
    piles: dict[str, list[int | None]] = {kind: [] for kind in KINDS}  # sizes; None: only the server knows
    missing: list[RemoteFile] = []
    for file in listed.files:
        kind, size = _standing(pipeline, file, receipts.get(file.path))
        piles[kind].append(size)
        if kind == "to be fetched":
            missing.append(file)
    click.echo("\n".join([*_report(pipeline, listed, piles), *_refusals(listed)]))
    if missing:
        return _ask_for(missing[0], listed)
    click.echo("nothing has to be fetched" if piles["to be hashed"] else "nothing is left to do")
    return 0


def _ask_for(file: RemoteFile, listed: Listed) -> int:
    """Prints the server's answer to a request for the file; returns 69 where it is a refusal."""
    assert listed.manners is not None  # a folder's files are never to be fetched
    file = file.at(listed.manners.hub, listed.revision)
    try:
        with HttpClient(listed.manners).open(file.url) as (answer, _):
            judge(answer, PartialContent(), file)
    except FetchFailed as failure:
        click.echo(f"asked for       {file.path}: {failure.reason}")
        return EXIT_UNAVAILABLE if failure.kind in REFUSALS else 0
    click.echo(f"asked for       {file.path}: it may be fetched")
    return 0


def _standing(pipeline: Pipeline, file: RemoteFile, receipt: Receipt | None) -> tuple[str, int | None]:
    """Returns a file's kind and size, by its receipt, or by the file at its place without a receipt."""
    place = inside(pipeline.source_root, file.path)
    known = receipt if receipt is not None and speaks_of(receipt, file) else None
    if not pipeline.dataset.source.spec.is_fetched:
        is_true = known is not None and known.usable and known.file == str(place)
        return "here, hashed" if is_true else "to be hashed", file.size
    if known is not None and known.state != "disputed":
        kinds = {"verified": KINDS[0], "unproven": KINDS[0], "given_up": "given up"}
        return kinds.get(known.state, "released"), known.size if file.size is None else file.size
    try:
        lies = place.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return "to be fetched", file.size
    return ("to be hashed", lies) if file.size in (None, lies) else ("to be fetched", file.size)


def _report(pipeline: Pipeline, listed: Listed, piles: Mapping[str, Sequence[int | None]]) -> Iterator[str]:
    """Yields the lines of the report: the source, the listing, the local files."""
    yield f"source          {listed.origin}" + (f", {listed.revision[:12]}" if listed.revision else "")
    limit = pipeline.dataset.limit
    bounds = ", ".join(f"{name}: {most:,}" for name, most in limit if most is not None)
    whole = _told([size for sizes in piles.values() for size in sizes])
    yield f"listed          {whole}" + (f" (dataset.limit: {bounds})" if bounds else "")
    if limit.rows or limit.tokens:
        yield "                fewer will be needed: how much a file holds is known once it is built"
    yield from (f"{kind:<15} {_told(sizes)}" for kind, sizes in piles.items() if sizes or kind == KINDS[0])
    if piles["to be fetched"]:
        root = pipeline.source_root
        yield f"into            {root}, {format_bytes(shutil.disk_usage(existing(root)).free)} free"


def _refusals(listed: Listed) -> Iterator[str]:
    shown = listed.refused[:SHOWN_REFUSED]
    yield from (f"refused         {path}: {reason}" for path, reason in shown)
    if (more := listed.refused_in_all - len(shown)) > 0:
        yield f"refused         {more:,} more"
