"""Writes a source's first rows into one parquet file, for a command. Heavy (pyarrow)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.transfer import Bandwidth, FileFetch, Terms
from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed, next_pause
from stoker.corpus.staging.finding import BadParquet
from stoker.corpus.staging.preflight import open_parquet, telling
from stoker.kit.loop import Backoff
from stoker.store.files import opened, unlink_durably

BATCH_BYTES, BATCH_ROWS = 8 << 20, 1000
READ_S = 30.0
TRIES, WRONG_TRIES, LONGEST_WAIT_S = 6, 2, 60.0


class Preview:
    """Writes the parquet file `out` in the first file's schema, until `left` rows are written.

    `landing` is an empty directory for files to fetch; `tell` is called after each file.
    """

    def __init__(
        self, out: Path, landing: Path, most_rows: int, manners: Manners | None, tell: Callable[[], None]
    ) -> None:
        self.rows = self.files = self.fetched = 0  # fetched: bytes over the network
        self.left = most_rows
        self._out, self._landing, self._tell = out, landing, tell
        self._caller = Caller(manners) if manners else None
        self._writer: pq.ParquetWriter | None = None

    def take(self, path: Path) -> None:
        """Writes rows of one more file; raises BadParquet."""
        self.files += 1
        with open_parquet(path) as file:
            for batch in self._batches(file):
                table = self._fitting(pa.Table.from_batches([batch]))
                assert self._writer is not None
                self._writer.write_table(table)
                self.rows += table.num_rows
                self.left -= table.num_rows
            self._tell()

    def take_remote(self, remote: RemoteFile) -> None:
        """Fetches and checks a whole file, writes its rows, removes it; raises FetchFailed."""
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
        self.take(landing.target(remote.path))
        unlink_durably(landing.target(remote.path))

    def close(self) -> None:
        """Closes the file and makes it durable."""
        if self._writer is not None:
            self._writer.close()
            with opened(self._out, os.O_RDONLY) as descriptor:
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
            self._writer = pq.ParquetWriter(self._out, table.schema, write_page_checksum=True)
            return table
        wanted = self._writer.schema
        try:
            return table.select(wanted.names).cast(wanted)
        except (pa.ArrowException, KeyError, ValueError) as error:
            detail = f"{error}; dataset.source.include can leave such files out"
            raise BadParquet("other_columns", detail) from error
