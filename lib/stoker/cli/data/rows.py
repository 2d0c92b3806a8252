"""`stoker rows`: the first rows of a source in one parquet file, for a first look at what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from stoker.cli.data.list_source import FINAL, Listed, list_source
from stoker.cli.options import PATH, pipeline_file
from stoker.cli.worker_jobs import Job, tidy_on_term, work
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.selection import Wanted, speaks_of
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources
from stoker.kit.status_line import Footer
from stoker.kit.workers.parent import Worker
from stoker.store.errors import DataError, StokerError, Transient, UnavailableError, UsageError
from stoker.store.files import move_durably, temporary_beside, unlink_durably

CONNECT_S, READ_S = 20.0, 30.0
MOST_ROWS = 10**9


@click.command(epilog="Example: stoker rows /etc/stoker/fineweb.yaml --max-rows 1000 look.parquet")
@pipeline_file
@click.option("--max-rows", type=click.IntRange(1, MOST_ROWS), required=True, help="How many at most.")
@click.argument("out", type=PATH)
def rows(file: Path, max_rows: int, out: Path) -> int:
    """Write the first rows of FILE's source, in listing order, to the new parquet file OUT.

    What is here already is read here; of anything else only the parts that hold these rows come over the
    network, and they are held against no sum. Quarantined files are passed over. Locks nothing, and writes
    nothing but OUT. Exit codes: 65 a file is no parquet; 69 the source cannot be had; 75 not now.
    """
    pipeline = load_pipeline(file)
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; name a new file")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a directory; make it, or name another place")
    listed = list_source(pipeline)
    temporary = temporary_beside(out)
    with tidy_on_term():
        try:
            result = _slice(pipeline, listed, max_rows, temporary)
            if not result["rows"]:
                raise DataError(f"{listed.origin} holds no rows; nothing was written")
            move_durably(temporary, out)
        except FileExistsError as error:
            raise UsageError(f"{out} exists now; name a new file") from error
        finally:
            unlink_durably(temporary)
    for line in _told(out, result, max_rows):
        click.echo(line)
    return 0


def _slice(pipeline: Pipeline, listed: Listed, max_rows: int, out: Path) -> dict[str, Any]:
    source, repo = pipeline.dataset.source, listed.repo
    task = {
        "out": str(out),
        "max_rows": max_rows,
        "hub": repo and {"repo": repo.repo, "repo_type": repo.repo_type, "endpoint": repo.endpoint},
        "token_file": None if source.token_file is None else str(source.token_file),
        "connect_s": CONNECT_S,
        "read_s": READ_S,
    }
    files, footer = _files(pipeline, listed), Footer()

    def hear(worker: Worker, message: Mapping[str, Any]) -> None:
        if message["kind"] == "next":
            worker.send(next(files, {"path": None}))
        else:
            footer.show(lambda _: f"{message['rows']:,} rows  {format_bytes(message['fetched'])} fetched")

    job = Job(
        "stoker.corpus.fetch.preview_worker",
        task,
        pipeline.download.stall,
        hear=hear,
        most_rss_bytes=pipeline.shard.memory.hard,
        keep_open=True,
    )
    try:
        result = work(job, "the rows cannot be read")
    finally:
        footer.clear()
    if result["status"] == "failed":
        raise _failure(result)
    return result


def _files(pipeline: Pipeline, listed: Listed) -> Iterator[dict[str, Any]]:
    """What the worker is told of each file in turn."""
    dataset, root = pipeline.dataset.name, pipeline.source_root
    receipts, sources = read_receipts(pipeline.layout, dataset), read_sources(pipeline.layout, dataset)

    def is_bad(path: str) -> bool:
        return path in sources and sources[path].state == "quarantined"

    def here(wanted: Wanted) -> str | None:
        receipt = receipts.get(wanted.path)
        if receipt is None or not receipt.usable or not speaks_of(receipt, wanted):
            return None
        return receipt.file if Path(receipt.file).is_file() else None

    for seen in listed.seen:
        if not is_bad(seen.path):
            yield {"path": seen.path, "here": str(root / seen.path), "remote": None}
    for wanted in listed.wanted:
        if not is_bad(wanted.path):
            remote = wanted.remote(listed.repo, listed.revision).to_fields()
            yield {"path": wanted.path, "here": here(wanted), "remote": remote}


def _failure(result: Mapping[str, Any]) -> StokerError:
    said = f"{result['path']}: {result['reason']}; nothing was written"
    kind = str(result["class"])
    if kind == "data":
        return DataError(said)
    return UnavailableError(said) if kind in FINAL else Transient(said)


def _told(out: Path, result: Mapping[str, Any], max_rows: int) -> Iterator[str]:
    count, files = result["rows"], result["files"]
    came = f", {format_bytes(result['fetched'])} over the network" if result["fetched"] else ""
    yield (f"{out}: {count:,} row{'s' * (count != 1)} of {files:,} file{'s' * (files != 1)}{came}")
    if count < max_rows:
        yield "there are no more"
