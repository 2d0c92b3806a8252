"""`stoker rows`: writes the first rows of a source to a parquet file, as a preview of its content."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.cli.data.list_source import Listed, error_of, list_source
from stoker.cli.options import PATH, data_file, plural
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.decide import speaks_of
from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.transfer import Bandwidth, FileFetch, Terms
from stoker.corpus.http.client import Caller
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed, next_pause
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources
from stoker.corpus.staging.finding import BadParquet
from stoker.corpus.staging.preflight import open_parquet, telling
from stoker.kit.loop import Backoff
from stoker.kit.terminal import Footer
from stoker.store.errors import DataError, UsageError
from stoker.store.files import make_dir, move_durably, opened, remove_tree, temporary_beside, unlink_durably

MOST_ROWS = 10**9
BATCH_BYTES, BATCH_ROWS = 8 << 20, 1000
READ_S = 30.0
TRIES, WRONG_TRIES, LONGEST_WAIT_S = 6, 2, 60.0


@click.command(epilog="Example: stoker rows /etc/stoker/fineweb.yaml --max-rows 1000 look.parquet")
@data_file
@click.option("--max-rows", type=click.IntRange(1, MOST_ROWS), required=True, help="How many at most.")
@click.argument("out", type=PATH)
def rows(pipeline: Pipeline, max_rows: int, out: Path) -> None:
    """Write the first rows of FILE's source, in listing order, to the new parquet file OUT.

    Files that are already local are read in place; any other file is fetched whole, beside OUT, until there
    are enough rows. Quarantined files are passed over. Locks nothing, and keeps nothing but OUT. Exit codes:
    65 a file is not parquet; 69 the source is not available; 75 try again later.
    """
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; name a new file")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a directory; make it, or name another place")
    listed = list_source(pipeline)
    temporary, footer = temporary_beside(out), Footer()
    preview, named = Preview(temporary, max_rows, listed), ""
    try:
        make_dir(temporary)
        for path, found in _files(pipeline, listed):
            named = path
            preview.take(found)
            footer.show(lambda _: f"{preview.rows:,} rows  {format_bytes(preview.fetched)} fetched")
            if preview.left <= 0:
                break
        if not preview.rows:
            raise DataError(f"{listed.origin} holds no rows; nothing was written")
        preview.close()
        move_durably(preview.out, out)
    except FileExistsError as error:
        raise UsageError(f"{out} exists now; name a new file") from error
    except BadParquet as error:
        raise DataError(f"{named} cannot be read, nothing was written: {error}") from error
    except FetchFailed as failure:
        raise error_of(failure, f"{named} cannot be read, nothing was written") from failure
    finally:
        footer.clear()
        remove_tree(temporary)
    came = f", {format_bytes(preview.fetched)} over the network" if preview.fetched else ""
    click.echo(f"{out}: {plural(preview.rows, 'row')} of {plural(preview.files, 'file')}{came}")
    if preview.left > 0:
        click.echo("there are no more")


def _files(pipeline: Pipeline, listed: Listed) -> Iterator[tuple[str, Path | RemoteFile]]:
    """Yields each file's path in the dataset, and its local path or its remote file."""
    dataset, root = pipeline.dataset.name, pipeline.source_root
    receipts, sources = read_receipts(pipeline.layout, dataset), read_sources(pipeline.layout, dataset)
    bad = {path for path, source in sources.items() if source.state == "quarantined"}
    hub = listed.manners.hub if listed.manners else None
    for file in listed.files:
        receipt, here = receipts.get(file.path), None
        if listed.manners is None:
            here = root / file.path
        elif receipt and receipt.usable and speaks_of(receipt, file) and Path(receipt.file).is_file():
            here = Path(receipt.file)
        if file.path not in bad:
            yield file.path, here or file.at(hub, listed.revision)


class Preview:
    """Writes the parquet file `out` in the first file's schema, until `left` rows are written."""

    def __init__(self, temporary: Path, most_rows: int, listed: Listed) -> None:
        self.rows = self.files = self.fetched = 0  # fetched: bytes over the network
        self.left, self.out = most_rows, temporary / "rows.parquet"
        self._landing = temporary / "landing"
        self._caller = Caller(listed.manners) if listed.manners else None
        self._writer: pq.ParquetWriter | None = None

    def take(self, found: Path | RemoteFile) -> None:
        """Writes rows of one more file, of a remote file after a fetch; raises BadParquet or FetchFailed."""
        path = found if isinstance(found, Path) else self._fetch(found)
        self.files += 1
        with open_parquet(path) as file:
            for batch in self._batches(file):
                table = self._fitting(pa.Table.from_batches([batch]))
                assert self._writer is not None
                self._writer.write_table(table)
                self.rows += table.num_rows
                self.left -= table.num_rows
        if path != found:
            unlink_durably(path)

    def _fetch(self, remote: RemoteFile) -> Path:
        assert self._caller is not None  # set whenever the source is fetched
        landing = Landing(self._landing, "preview", expected=False)
        terms = Terms(landing, Bandwidth(None), lambda *_, **__: None, 0.0, READ_S, 0, 0, 0)
        file = FileFetch(remote, terms, Backoff(0.5, LONGEST_WAIT_S))
        for tries in range(1, TRIES + 1):
            try:
                file.attempt(self._caller)
                break
            except FetchFailed as failure:
                wait_s = next_pause(failure, file.failures, WRONG_TRIES, file.backoff.next())
                if wait_s is None or tries == TRIES or wait_s > LONGEST_WAIT_S:
                    raise
                time.sleep(wait_s)
        self.fetched += file.received
        return landing.target(remote.path)

    def close(self) -> None:
        """Closes the file and makes it durable."""
        if self._writer is not None:
            self._writer.close()
            with opened(self.out, os.O_RDONLY) as descriptor:
                os.fsync(descriptor)

    def _batches(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """Yields at most the missing rows, in batches of bounded size."""
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            row_bytes = max(1, about.total_byte_size // max(1, about.num_rows))
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes, self.left))
            with telling(lambda _: "page_corrupt", row_group=group):
                for batch in file.iter_batches(batch_size=size, row_groups=[group], use_threads=False):
                    yield batch.slice(0, self.left)
                    if self.left <= 0:
                        return

    def _fitting(self, table: pa.Table) -> pa.Table:
        """Returns the table in the schema of the first file, which the first call sets."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.out, table.schema, write_page_checksum=True)
            return table
        wanted = self._writer.schema
        try:
            return table.select(wanted.names).cast(wanted)
        except (pa.ArrowException, KeyError, ValueError) as error:
            detail = f"{error}; dataset.source.include can leave such files out"
            raise BadParquet("other_columns", detail) from error
