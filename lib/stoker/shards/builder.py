"""The builder: one parquet file in, the data files of its shard set out, committed as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from stoker.shards.engine import Engine
from stoker.shards.filters import make_filters, select
from stoker.shards.growing import GrowingSet
from stoker.shards.identity import BuildParameters, build_id, set_key
from stoker.shards.manifest import Books
from stoker.shards.parquet import Batch, ParquetText
from stoker.shards.progress import Committer, Progress, origin_of, recover
from stoker.store.errors import DataError


class Reporter(Protocol):
    """What a build tells and hears: messages out, whether to stop in."""

    stopping: bool

    def __call__(self, kind: str, **fields: Any) -> None: ...

    def raise_if_stopping(self) -> None: ...


@dataclass(frozen=True)
class BuildTask:
    """One build as the daemon asks for it; sizes in bytes, times in seconds."""

    parquet: Path
    source_path: str
    source_size: int
    source_sha256: str
    dataset: str
    key: str
    build_id: str
    build: BuildParameters
    tokenizer_file: Path
    building: Path
    target: Path
    read_rows: int
    commit_every_s: float
    commit_bytes: int
    engine: str
    commit_every_row_group: bool

    @classmethod
    def from_mapping(cls, task: Mapping[str, Any]) -> BuildTask:
        """Read a task; raises DataError where its key or build id is not that of its parameters."""
        try:
            made = cls(
                parquet=Path(task["parquet"]),
                source_path=str(task["source"]["path"]),
                source_size=int(task["source"]["size"]),
                source_sha256=str(task["source"]["sha256"]),
                dataset=str(task["dataset"]),
                key=str(task["key"]),
                build_id=str(task["build_id"]),
                build=BuildParameters.from_mapping(task["build"]),
                tokenizer_file=Path(task["tokenizer_file"]),
                building=Path(task["building"]),
                target=Path(task["target"]),
                read_rows=int(task.get("read_rows", 250)),
                commit_every_s=float(task["commit"]["every_s"]),
                commit_bytes=int(task["commit"]["bytes"]),
                engine=str(task.get("engine", "auto")),
                commit_every_row_group=bool(task.get("commit_every_row_group", False)),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"build task: {error!r}") from error
        if made.build_id != build_id(made.build) or made.key != set_key(made.source_sha256, made.build_id):
            raise DataError(
                f"build task of {made.source_path}: key or build id is not that of its parameters"
            )
        return made


class Build:
    """A build under way: the growing files, the books, and the next row to read."""

    def __init__(self, task: BuildTask, engine: Engine) -> None:
        self.task = task
        self.engine = engine
        self.progress = recover(task.building, task.key, origin_of(task.parquet))
        self.books = Books() if self.progress.books is None else Books.from_mapping(self.progress.books)
        self.set = GrowingSet(
            task.building, task.build.dtype, task.build.shard_tokens, dict(self.progress.files or {})
        )
        self.row_group, self.row = self.progress.row_group, self.progress.row
        self._filters = make_filters(task.build.filters)
        self._is_val = val_decision(task.build.val_ratio, task.build.val_salt)
        self._begun = time.monotonic() - self.progress.elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Time spent building, over every start."""
        return time.monotonic() - self._begun

    def run(self, report: Reporter) -> None:
        """Read the source to its end and leave everything committed; raises BadParquet, StorageError.

        Asked to stop, it commits what it has and raises WorkerStopped.
        """
        task = self.task
        report("phase", phase="open", row_group=self.row_group, row=self.row)
        source = ParquetText(
            task.parquet, task.build.text_column, task.build.filters.columns(), task.read_rows
        )
        with Committer(task.building, report) as committer:
            report("phase", phase="encode")
            for batch in source.batches(self.row_group, self.row):
                self._take(batch, source.row_numbers(batch))
                end = batch.row + batch.rows
                at_end = end == source.group_rows[batch.row_group]
                self.row_group, self.row = (batch.row_group + 1, 0) if at_end else (batch.row_group, end)
                committer.check()
                if report.stopping:
                    break
                if task.commit_every_row_group and at_end:
                    self._commit(committer)
                    committer.wait()
                elif self._due(committer.busy):
                    self._commit(committer)
                    report("phase", phase="encode")
            self._commit(committer)
            committer.wait()
        report.raise_if_stopping()

    def _due(self, busy: bool) -> bool:
        """By time when no commit is in flight; by size always, to bound what a kill costs."""
        grown = sum(file.length for file in self.set.files) - sum((self.progress.files or {}).values())
        since = self.elapsed_s - self.progress.elapsed_s
        return grown >= self.task.commit_bytes or (since >= self.task.commit_every_s and not busy)

    def _commit(self, committer: Committer) -> None:
        self.progress = Progress(
            key=self.task.key,
            origin=self.progress.origin,
            row_group=self.row_group,
            row=self.row,
            files=self.set.lengths(),
            books=self.books.to_mapping(),
            elapsed_s=round(self.elapsed_s, 3),
        )
        committer.start(self.set.take_dirty(), self.progress)

    def _take(self, batch: Batch, numbers: npt.NDArray[np.int64]) -> None:
        """Filter, encode and append one batch, and book every row of it."""
        selection = select(batch, self._filters)
        kept = batch.text if selection.keep.all() else batch.text.filter(selection.keep)
        texts: list[str] = kept.to_pylist()
        tokens, lengths = self._with_end_of_text(texts)
        val = np.fromiter(map(self._is_val, texts), dtype=bool, count=len(texts))
        books = self.books
        books.rows += batch.rows
        books.chars += selection.chars
        for reason, rows in selection.dropped.items():
            books.dropped[reason] = books.dropped.get(reason, 0) + rows
        kept_rows = numbers[selection.keep]
        of_val = np.repeat(val, lengths)
        for split, documents, chosen in (("train", ~val, ~of_val), ("val", val, of_val)):
            self.set.splits[split].append(tokens[chosen], lengths[documents], kept_rows[documents])
            books.documents[split] += int(documents.sum())
            books.tokens[split] += int(chosen.sum())

    def _with_end_of_text(self, texts: list[str]) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]:
        ids, lengths = self.engine.encode(texts)
        lengths = lengths + 1
        tokens = np.full(
            int(lengths.sum()), self.task.build.eot, dtype=np.dtype(self.task.build.dtype).newbyteorder("<")
        )
        text = np.ones(len(tokens), dtype=bool)
        text[np.cumsum(lengths) - 1] = False
        tokens[text] = ids
        return tokens, lengths


def val_decision(ratio: float, salt: int) -> Callable[[str], bool]:
    """Whether a document is held out: its hash falls in the lowest `ratio` of all 64-bit values."""
    threshold = int(ratio * 2**64)

    def is_val(text: str) -> bool:
        return bool(xxhash.xxh3_64_intdigest(text.encode(), salt) < threshold)

    return is_val
