"""Worker: a source's first rows as one parquet file, reading no more than it must. Heavy (pyarrow).

task: {"out": the file to write, "max_rows", "hub": {"repo", "repo_type", "endpoint"} or null, "token_file",
       "connect_s", "read_s"}
messages: {"kind": "next"} asks for a file, answered by {"path", "here": where it lies or null, "remote":
    RemoteFile's fields or null} or by {"path": null} after the last; {"kind": "progress", "rows", "fetched"}
result: {"status": "written", "rows", "files", "fetched": bytes over the network} or
    {"status": "failed", "class", "path", "reason"}: class is "data" for a file that is no parquet or has
    other columns than the first one, else one of fetch's names
What comes over the network is held against no sum: it is for a look, not for training.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.hub import HubRepo, hub_token
from stoker.corpus.http.range_reader import RangeFile
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.staging.footer import Flaw, FlawError, open_parquet, open_parquet_stream, telling
from stoker.kit.throttle import paced
from stoker.kit.workers.child import Report, run_worker
from stoker.store.files import opened

BATCH_BYTES, BATCH_ROWS = 8 << 20, 1000
HOLD_BYTES, HOLD_ANYWAY_BYTES = 8 << 20, 256 << 10


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Read on until there are enough rows, or no file is left."""
    slice_ = _Slice(task, report)
    try:
        with slice_:
            while slice_.left > 0 and (file := _next(report)) is not None:
                slice_.take(file)
    except FlawError as error:
        where = "" if error.flaw.row_group is None else f"row group {error.flaw.row_group}: "
        return slice_.failed("data", f"{where}{error.flaw.reason}: {error.flaw.fields()['detail']}")
    except FetchFailed as failure:
        return slice_.failed(failure.kind, failure.reason)
    return {
        "status": "written",
        "rows": slice_.rows,
        "files": slice_.files,
        "fetched": slice_.fetched,
    }


def _next(report: Report) -> dict[str, Any] | None:
    report("next")
    answer = report.receive()
    report.raise_if_stopping()
    return None if answer is None or answer["path"] is None else answer


class _Slice:
    """The file that is written, by the first file's schema."""

    def __init__(self, task: Mapping[str, Any], report: Report) -> None:
        self.rows = self.files = self._fetched_before = 0
        self.left = int(task["max_rows"])
        self._task, self._out = task, Path(task["out"])
        self._caller: Caller | None = None
        self._remote: RangeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._path = ""
        self._tell = paced(lambda _, rows: report("progress", rows=rows, fetched=self.fetched))

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
            if kind is None:
                with opened(self._out, os.O_RDONLY) as descriptor:
                    os.fsync(descriptor)

    @property
    def fetched(self) -> int:
        """Bytes that came over the network."""
        return self._fetched_before + (self._remote.fetched if self._remote else 0)

    def failed(self, kind: str, reason: str) -> dict[str, Any]:
        """The result that says which file is to blame."""
        return {"status": "failed", "class": kind, "path": self._path, "reason": reason}

    def take(self, named: Mapping[str, Any]) -> None:
        """Write rows of one more file."""
        self._path = named["path"]
        self.files += 1
        with self._opened(named) as file:
            for batch in self._batches(file):
                table = self._fitting(pa.Table.from_batches([batch]))
                assert self._writer is not None
                self._writer.write_table(table)
                self.rows += table.num_rows
                self.left -= table.num_rows
                self._tell("rows", self.rows)

    @contextlib.contextmanager
    def _opened(self, named: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
        if named["here"] is not None:
            with open_parquet(Path(named["here"])) as file:
                yield file
            return
        self._remote = RangeFile(self._call(), RemoteFile.from_fields(named["remote"]))
        try:
            yield open_parquet_stream(self._remote, self._remote.size)
        finally:
            self._fetched_before, self._remote = self.fetched, None

    def _call(self) -> Caller:
        if self._caller is None:
            hub = self._task["hub"] and HubRepo(**self._task["hub"])
            token = hub_token(self._task["token_file"]) if hub else None
            self._caller = Caller(Manners(self._task["connect_s"], self._task["read_s"], hub, token))
        return self._caller

    def _batches(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """At most as many rows as are wanted, in pieces of bounded size."""
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            row_bytes = max(1, about.total_byte_size // max(1, about.num_rows))
            size = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes, self.left))
            if self._remote is not None:
                self._hold(self._remote, about)
            with telling(lambda _: "page_corrupt", row_group=group):
                pieces = file.iter_batches(batch_size=size, row_groups=[group], use_threads=False)
            while self.left > 0:
                with telling(lambda _: "page_corrupt", row_group=group):
                    batch = next(pieces, None)
                if batch is None:
                    break
                yield batch.slice(0, self.left)
            if self.left <= 0:
                return

    def _hold(self, remote: RangeFile, group: pq.RowGroupMetaData) -> None:
        """Have a small row group come in one request, and a larger one if most of it is needed."""
        columns = [group.column(number) for number in range(group.num_columns)]
        starts = [
            min(at for at in (each.dictionary_page_offset, each.data_page_offset) if at is not None)
            for each in columns
        ]
        ends = [at + each.total_compressed_size for at, each in zip(starts, columns, strict=True)]
        begin, end = min(starts, default=0), max(ends, default=0)
        if end - begin <= (HOLD_BYTES if self.left >= group.num_rows // 2 else HOLD_ANYWAY_BYTES):
            remote.hold(begin, end)

    def _fitting(self, table: pa.Table) -> pa.Table:
        """In the shape of the first file, which the first call gives to what is written."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._out, table.schema, write_page_checksum=True)
            return table
        wanted = self._writer.schema
        try:
            return table.select(wanted.names).cast(wanted)
        except (pa.ArrowException, KeyError, ValueError) as error:
            detail = f"{error}; dataset.source.include can leave such files out"
            raise FlawError(Flaw("other_columns", detail)) from error


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
