"""`stoker rows`: the first rows of a source in one parquet file, for a first look at what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stoker.cli.data.list_source import Listed, error_of, list_source
from stoker.cli.options import PATH, pipeline_file, plural
from stoker.cli.worker_jobs import work
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.selection import speaks_of
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources
from stoker.kit.terminal.live_lines import Footer
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import Worker
from stoker.store.errors import DataError, UsageError
from stoker.store.files import make_dir, move_durably, remove_tree, temporary_beside

MOST_ROWS = 10**9


@click.command(epilog="Example: stoker rows /etc/stoker/fineweb.yaml --max-rows 1000 look.parquet")
@pipeline_file
@click.option("--max-rows", type=click.IntRange(1, MOST_ROWS), required=True, help="How many at most.")
@click.argument("out", type=PATH)
def rows(pipeline: Pipeline, max_rows: int, out: Path) -> None:
    """Write the first rows of FILE's source, in listing order, to the new parquet file OUT.

    What is here already is read here; any other file is fetched whole, beside OUT, until there are rows
    enough. Quarantined files are passed over. Locks nothing, and keeps nothing but OUT. Exit codes: 65 a file
    is no parquet; 69 the source cannot be had; 75 not now.
    """
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; name a new file")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a directory; make it, or name another place")
    listed = list_source(pipeline)
    temporary = temporary_beside(out)
    try:
        make_dir(temporary)
        result = _preview(pipeline, listed, max_rows, temporary)
        if result["status"] == "failed":
            raise error_of(result, f"{result['path']} cannot be read, nothing was written")
        if not result["rows"]:
            raise DataError(f"{listed.origin} holds no rows; nothing was written")
        move_durably(temporary / "rows.parquet", out)
    except FileExistsError as error:
        raise UsageError(f"{out} exists now; name a new file") from error
    finally:
        remove_tree(temporary)
    came = f", {format_bytes(result['fetched'])} over the network" if result["fetched"] else ""
    click.echo(f"{out}: {plural(result['rows'], 'row')} of {plural(result['files'], 'file')}{came}")
    if result["rows"] < max_rows:
        click.echo("there are no more")


def _preview(pipeline: Pipeline, listed: Listed, max_rows: int, temporary: Path) -> dict[str, Any]:
    task = {
        "out": str(temporary / "rows.parquet"),
        "landing": str(temporary / "landing"),
        "max_rows": max_rows,
        **listed.access,
    }
    files, footer = _files(pipeline, listed), Footer()

    def hear(worker: Worker, message: Mapping[str, Any]) -> None:
        if message["kind"] == "next":
            worker.send(next(files, {"path": None}))
        else:
            footer.show(lambda _: f"{message['rows']:,} rows  {format_bytes(message['fetched'])} fetched")

    module = "stoker.corpus.fetch.preview_worker"
    preview = Activity("preview", module, pipeline.download.stall, is_memory_bound=True, keep_open=True)
    most = pipeline.shard.memory.hard
    try:
        return work(preview, task, "the rows cannot be read", hear=hear, most_rss_bytes=most)
    finally:
        footer.clear()


def _files(pipeline: Pipeline, listed: Listed) -> Iterator[dict[str, Any]]:
    """What the worker needs to know of each file in turn."""
    dataset, root = pipeline.dataset.name, pipeline.source_root
    receipts, sources = read_receipts(pipeline.layout, dataset), read_sources(pipeline.layout, dataset)
    bad = {path for path, source in sources.items() if source.state == "quarantined"}
    for seen in listed.seen:
        if seen.path not in bad:
            yield {"path": seen.path, "here": str(root / seen.path)}
    for wanted in listed.wanted:
        receipt = receipts.get(wanted.path)
        is_here = receipt is not None and receipt.usable and speaks_of(receipt, wanted)
        here = receipt.file if receipt is not None and is_here and Path(receipt.file).is_file() else None
        if wanted.path not in bad:
            remote = asdict(wanted.at(listed.repo, listed.revision))
            yield {"path": wanted.path, "here": here, "remote": remote}
