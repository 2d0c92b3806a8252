"""`stoker data rows`: writes the first rows of a source to a parquet file, as a preview of its content."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.cli.data.list_source import Listed, error_of, list_source
from stoker.cli.options import PATH, data_file, plural
from stoker.config.schema import Pipeline
from stoker.corpus.fetch.decide import speaks_of
from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.transfer import Bandwidth, FileFetch, TransferConfig
from stoker.corpus.http.client import HttpClient
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed, next_pause
from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.reader import reader_of
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources
from stoker.kit.loop import Backoff
from stoker.store.errors import DataError, UsageError
from stoker.store.files import fsync_tree, make_dir, move_durably, remove_tree, temporary_beside

MOST_ROWS = 10**9
READ_S, TRIES, WRONG_TRIES, LONGEST_WAIT_S = 30.0, 6, 2, 60.0


@click.command(epilog="Example: stoker data rows /etc/stoker/fineweb.yaml --max-rows 1000 look.parquet")
@data_file
@click.option("--max-rows", type=click.IntRange(1, MOST_ROWS), required=True, help="How many at most.")
@click.argument("out", type=PATH)
def rows(pipeline: Pipeline, max_rows: int, out: Path) -> None:
    """Write the first rows of FILE's source, in listing order, to the new parquet file OUT.

    Files that are already local are read in place; any other file is fetched whole, beside OUT, until there
    are enough rows. Quarantined files are skipped. Locks nothing, and keeps nothing but OUT. Exit codes:
    65 a file is not parquet; 69 the source is not available; 75 try again later.
    """
    if out.exists() or out.is_symlink() or not out.parent.is_dir():
        raise UsageError(f"{out} has to be a new file in a directory that exists")
    listed, temporary, path, written = list_source(pipeline), temporary_beside(out), "", 0
    preview, writer = temporary / "rows.parquet", None
    try:
        make_dir(temporary)
        for path, file in _files(pipeline, listed, temporary):
            for table in reader_of(Path(path)).tables(file, max_rows - written):
                writer = writer or pq.ParquetWriter(preview, table.schema, write_page_checksum=True)
                writer.write_table(_fitting(table, writer.schema))
                written += table.num_rows
            if written == max_rows:
                break
        if writer is None:
            raise DataError(f"{listed.origin} holds no rows; nothing was written")
        writer.close()
        fsync_tree(temporary)
        move_durably(preview, out)
    except FileExistsError as error:
        raise UsageError(f"{out} exists now; name a new file") from error
    except BadFile as error:
        raise DataError(f"{path} cannot be read, nothing was written: {error}") from error
    finally:
        remove_tree(temporary)
    click.echo(f"{out}: {plural(written, 'row')}" + ("" if written == max_rows else "; there are no more"))


def _files(pipeline: Pipeline, listed: Listed, temporary: Path) -> Iterator[tuple[str, Path]]:
    """Yields each file's path in the dataset and its local path; a fetched one exists until the next."""
    dataset, landing = pipeline.dataset.name, Landing(temporary / "landing", "preview", expected=False)
    receipts, sources = read_receipts(pipeline.layout, dataset), read_sources(pipeline.layout, dataset)
    for file in listed.files:
        source, receipt = sources.get(file.path), receipts.get(file.path)
        if source is not None and source.state == "quarantined":
            continue
        if listed.manners is None:
            yield file.path, pipeline.source_root / file.path
        elif receipt and receipt.usable and speaks_of(receipt, file) and Path(receipt.file).is_file():
            yield file.path, Path(receipt.file)
        else:
            remote = file.at(listed.manners.hub, listed.revision)
            try:
                fetched = _fetch(remote, HttpClient(listed.manners), landing)
            except FetchFailed as failure:
                raise error_of(failure, f"{file.path} cannot be read, nothing was written") from failure
            yield file.path, fetched
            fetched.unlink()


def _fetch(remote: RemoteFile, caller: HttpClient, landing: Landing) -> Path:
    terms = TransferConfig(landing, Bandwidth(None), lambda *_, **__: None, 0.0, READ_S, 0, 0, 0)
    file = FileFetch(remote, terms, Backoff(0.5, LONGEST_WAIT_S))
    for tries_left in reversed(range(TRIES)):
        try:
            file.attempt(caller)
            break
        except FetchFailed as failure:
            wait_s = next_pause(failure, file.failures, WRONG_TRIES, file.backoff.next())
            if wait_s is None or not tries_left or wait_s > LONGEST_WAIT_S:
                raise
            time.sleep(wait_s)
    return landing.target(remote.path)


def _fitting(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Returns the table in the schema of the first file."""
    try:
        return table.select(wanted.names).cast(wanted)
    except (pa.ArrowException, KeyError, ValueError) as error:
        detail = f"{error}; dataset.source.include can leave such files out"
        raise BadFile("other_columns", detail) from error
