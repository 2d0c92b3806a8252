"""Worker: a source's first rows as one parquet file. Heavy (pyarrow).

task: {"out": the file to write, "landing": an empty directory for files that have to be fetched, "max_rows",
       "hub": {"repo", "repo_type", "endpoint"} or null, "token_file"}
messages: {"kind": "next"} asks for a file, answered by {"path", "here": where it lies or null, "remote":
    RemoteFile's fields or null} or by {"path": null} after the last; {"kind": "progress", "rows", "fetched"}
result: {"status": "written", "rows", "files", "fetched": bytes over the network} or
    {"status": "failed", "class", "path", "reason"}: class is "data" for a file that is no parquet or has
    other columns than the first one, else one of fetch's names
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.transfer import FileFetch, Terms
from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.hub import HubRepo, hub_token
from stoker.corpus.http.rate_limits import Bandwidth
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed, next_pause
from stoker.corpus.staging.finding import BadParquet
from stoker.corpus.staging.footer import open_parquet, telling
from stoker.kit.backoff import Backoff
from stoker.kit.workers.child import Report, run_worker
from stoker.store.files import opened, unlink_durably

BATCH_BYTES, BATCH_ROWS = 8 << 20, 1000
CONNECT_S, READ_S = 20.0, 30.0
TRIES, WRONG_TRIES, LONGEST_WAIT_S = 6, 2, 60.0
COMMIT_S = 2.0  # a sign of life each


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Read on until there are enough rows, or no file is left."""
    preview = _Preview(task, report)
    named: Mapping[str, Any] = {}
    try:
        while preview.left > 0 and (named := _next(report))["path"] is not None:
            preview.take(Path(named["here"] or preview.fetch(RemoteFile(**named["remote"]))))
            if named["here"] is None:
                unlink_durably(Path(task["landing"], named["path"]))
    except (BadParquet, FetchFailed) as error:
        if isinstance(error, FetchFailed):
            kind, reason = error.kind, error.reason
        else:
            found = error.finding
            where = "" if found.row_group is None else f"row group {found.row_group}: "
            kind, reason = "data", f"{where}{found.reason}: {found.fields()['detail']}"
        return {"status": "failed", "class": kind, "path": named["path"], "reason": reason}
    preview.close()
    return {"status": "written", "rows": preview.rows, "files": preview.files, "fetched": preview.fetched}


def _next(report: Report) -> dict[str, Any]:
    report("next")
    answer = report.receive()
    report.raise_if_stopping()
    return answer or {"path": None}


def _commit(file: FileFetch, ended: threading.Event) -> None:
    while not ended.wait(COMMIT_S):
        file.commit()


class _Preview:
    """The file that is written, by the first file's schema."""

    def __init__(self, task: Mapping[str, Any], report: Report) -> None:
        self.rows = self.files = self.fetched = 0
        self.left = int(task["max_rows"])
        self._task, self._report = task, report
        hub = task["hub"] and HubRepo(**task["hub"])
        self._caller = Caller(Manners(CONNECT_S, READ_S, hub, hub_token(task["token_file"]) if hub else None))
        self._writer: pq.ParquetWriter | None = None

    def close(self) -> None:
        """Make what was written durable."""
        if self._writer is not None:
            self._writer.close()
            with opened(self._task["out"], os.O_RDONLY) as descriptor:
                os.fsync(descriptor)

    def fetch(self, remote: RemoteFile) -> Path:
        """Bring a file here whole, held against the sum and the size that are known of it."""
        landing = Landing(Path(self._task["landing"]), "preview", expected=False)
        terms = Terms(landing, Bandwidth(None), self._tell, 0.0, READ_S, 0, 0, 0)
        file = FileFetch(remote, terms, Backoff(0.5, LONGEST_WAIT_S))
        ended = threading.Event()
        threading.Thread(target=_commit, args=(file, ended), daemon=True).start()
        for tries in range(1, TRIES + 1):
            try:
                file.attempt(self._caller)
                break
            except FetchFailed as failure:
                wait_s = next_pause(failure, file.failures, WRONG_TRIES, file.backoff.next())
                if wait_s is None or tries == TRIES or wait_s > LONGEST_WAIT_S:
                    raise
                time.sleep(wait_s)
        ended.set()
        self.fetched += file.received
        return landing.target(remote.path)

    def take(self, path: Path) -> None:
        """Write rows of one more file."""
        self.files += 1
        with open_parquet(path) as file:
            for batch in self._batches(file):
                table = self._fitting(pa.Table.from_batches([batch]))
                assert self._writer is not None
                self._writer.write_table(table)
                self.rows += table.num_rows
                self.left -= table.num_rows
            self._tell("rows")

    def _tell(self, _: str, **__: Any) -> None:
        self._report("progress", rows=self.rows, fetched=self.fetched)

    def _batches(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """At most as many rows as are wanted, in pieces of bounded size."""
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
        """In the shape of the first file, which the first call gives to what is written."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._task["out"], table.schema, write_page_checksum=True)
            return table
        wanted = self._writer.schema
        try:
            return table.select(wanted.names).cast(wanted)
        except (pa.ArrowException, KeyError, ValueError) as error:
            detail = f"{error}; dataset.source.include can leave such files out"
            raise BadParquet("other_columns", detail) from error


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
