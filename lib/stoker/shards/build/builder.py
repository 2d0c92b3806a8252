"""The builder: reads one source file and writes its shard set's data files, in commits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from stoker.corpus.readers.reader import Batch, Rows, reader_of
from stoker.corpus.records.sources import COUNTED, Books
from stoker.kit.workers.child import Report
from stoker.shards.build.commit import Committer, Progress, origin_of, recover
from stoker.shards.build.filters import make_filters, select
from stoker.shards.build.memory_use import Footprint
from stoker.shards.build.readback import Trail
from stoker.shards.build.shard_writer import GrowingSet
from stoker.shards.format.identity import BuildParameters, build_id, set_key
from stoker.shards.format.manifest import OFFSET_BYTES
from stoker.shards.tokenize.engine import Engine, EngineUnsupported, Ids, Lengths, portions
from stoker.store.errors import DataError
from stoker.store.record import values_of

Result = TypeVar("Result")
P = ParamSpec("P")

SOFT_BYTES = 320 << 20  # default of a task
ROWS_BYTES = 2 * OFFSET_BYTES  # a document's end and its row number
# Encoded in one call: the tokens of a whole batch of long documents would take too much memory.
PORTION_CHARS = 4 << 20


class NoRoom(Exception):
    """Raised when the set needs more bytes on the disk than this build may take."""


@dataclass(frozen=True)
class BuildTask:
    """One build as the daemon requests it; sizes in bytes, times in seconds."""

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
    commit_every_s: float
    commit_bytes: int
    soft_bytes: int
    source_xxh3: str = ""  # xxh3_128 of the staged file, empty where the daemon does not know it
    read_rows: int = 250
    engine: str = "auto"
    commit_every_row_group: bool = False
    room: int | None = None  # bytes that the set may take before the worker must ask for more; None: any size

    @classmethod
    def from_mapping(cls, task: Mapping[str, Any]) -> BuildTask:
        """Parses a task; raises DataError where its key or build id is not that of its parameters."""
        try:
            fields = values_of(cls, task) | {"build": BuildParameters.from_mapping(task["build"])}
            fields |= {name: Path(task[name]) for name in ("parquet", "tokenizer_file", "building", "target")}
            fields |= {f"source_{name}": value for name, value in task["source"].items()}
            made = cls(
                **fields,
                commit_every_s=task["commit"]["every_s"],
                commit_bytes=task["commit"]["bytes"],
                soft_bytes=task.get("memory", {}).get("soft", SOFT_BYTES),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(f"build task: {error!r}") from error
        if made.build_id != build_id(made.build) or made.key != set_key(made.source_sha256, made.build_id):
            raise DataError(
                f"build task of {made.source_path}: key or build id is not that of its parameters"
            )
        return made


class Build:
    """A build in progress: the output files, the books, and the next row to read.

    `reference` gives the engine that takes over where `engine` fails; both give the same tokens. `loaded` is
    the resident bytes of this process before the first text.
    """

    def __init__(self, task: BuildTask, engine: Engine, reference: Callable[[], Engine], loaded: int) -> None:
        self.task = task
        self.engine = engine
        self.engine_refused = ""
        self.progress = recover(task.building, task.key, origin_of(task.parquet))
        # Plain counters: new books with every batch would cost a fiftieth of a build
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        if self.progress.books is not None:
            books = Books.from_mapping(self.progress.books)
            self._counts.update({name: getattr(books, name) for name in COUNTED})
            self._dropped.update(dict(books.dropped or ()))
        self.set = GrowingSet(
            task.building, task.build.dtype, task.build.shard_tokens, dict(self.progress.files or {})
        )
        self.row_group, self.row = self.progress.row_group, self.progress.row
        self._room = task.room
        self._reference = reference
        self._footprint = Footprint(task.soft_bytes, loaded)
        self._is_too_large = False
        self._filters = make_filters(task.build.filters)
        self._held_out = val_decision(task.build.val_ratio, task.build.val_salt)
        self._dtype = np.dtype(task.build.dtype).newbyteorder("<")
        self._begun = time.monotonic() - self.progress.elapsed_s

    @property
    def books(self) -> Books:
        """The counts of all rows taken so far."""
        return Books.summed(self._counts, self._dropped)

    @property
    def elapsed_s(self) -> float:
        """Time spent building, over all starts."""
        return time.monotonic() - self._begun

    def close(self) -> None:
        """Closes the set's files: a worker builds more than one set."""
        self.set.close()

    def run(self, report: Report, source_trail: Trail, set_trail: Trail, encoder: EncodeThread) -> bool:
        """Reads the source to its end and commits all of it; raises BadFile, NoRoom, StorageError.

        Returns False after a commit when this process holds too much memory, and a fresh process should
        continue. On a request to stop it commits and raises WorkerStopped. The trails learn which bytes may
        be read back.
        """
        # Rows are read, encoded and written in one thread: a hand-over of each batch costs a tenth of a build
        steps = self._encode(report, source_trail, set_trail)
        while encoder.call(next, steps, None):
            encoder.renew()
            self._footprint.forgotten()
        report.raise_if_stopping()
        return not self._is_too_large

    def _encode(self, report: Report, source_trail: Trail, set_trail: Trail) -> Iterator[str]:
        """Builds until the end, a stop or too much memory; yields where another thread should continue."""
        task = self.task
        report("phase", phase="open", row_group=self.row_group, row=self.row)
        columns = task.build.filters.columns()
        reader = reader_of(task.parquet)
        column, tokens = task.build.text_column, task.build.token_rules
        source = reader.open_rows(task.parquet, column, columns, task.read_rows, tokens)
        with Committer(task.building, report, set_trail.advance) as committer:
            report("phase", phase="encode")
            began = self.progress
            for batch in source.batches(self.row_group, self.row):
                self._take(batch, source, report)
                at_end = self._pass(batch, source)
                if report.stopping:
                    break
                if at_end:
                    source_trail.advance(task.parquet, source.read_up_to(batch.row_group))
                if task.commit_every_row_group:
                    if at_end:
                        self._commit(committer)
                        committer.wait()
                elif self.progress is began or self._due(committer.busy):
                    self._commit(committer)
                    if self._footprint.too_large():
                        self._is_too_large = True
                        break
                    report("phase", phase="encode")
                if self._footprint.crowded():
                    yield "crowded"
            self._commit(committer)
            committer.wait()

    def _ask_for_room(self, needed: int, report: Report) -> int:
        """Asks the daemon to raise the room of the set; raises NoRoom where the daemon gives too little."""
        report("room", written=self.set.disk_bytes, needed=needed)
        answer = report.receive()
        report.raise_if_stopping()
        room = int((answer or {})["room"])
        if needed > room:
            raise NoRoom
        return room

    def _pass(self, batch: Batch, source: Rows) -> bool:
        """Moves the position behind the batch; returns whether the batch ends its row group."""
        self.row_group, self.row = source.after(batch)
        return not self.row

    def _due(self, busy: bool) -> bool:
        """Whether to commit: by time while no commit is in flight.

        By size always, to bound the cost of a kill.
        """
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
        committer.start(self.set.unsettled(), self.progress)

    def _take(self, batch: Batch, source: Rows, report: Report) -> None:
        """Filters, encodes and appends one batch, and counts every row of it in the books."""
        selection = select(batch, self._filters)
        self._counts.update(rows=batch.rows, chars=selection.chars)
        self._dropped.update(selection.dropped)
        kept = np.flatnonzero(selection.keep).tolist()
        numbers = source.row_numbers(batch)[selection.keep]
        val = self._held_out(batch.utf8[row] for row in kept)
        texts: list[str] = [batch.texts[row] for row in kept]  # type: ignore[misc] # the filters always drop null
        for part in portions(texts, PORTION_CHARS):
            tokens, lengths = self._documents(texts[part], report)
            added = len(tokens) * self._dtype.itemsize + len(lengths) * ROWS_BYTES
            if self._room is not None and self.set.disk_bytes + added > self._room:
                self._room = self._ask_for_room(self.set.disk_bytes + added, report)
            self._append(tokens.astype(self._dtype, copy=False), lengths, numbers[part], val[part])

    def _append(
        self,
        tokens: npt.NDArray[np.generic],
        lengths: Lengths,
        rows: npt.NDArray[np.int64],
        val: npt.NDArray[np.bool_],
    ) -> None:
        if not val.any():
            parts = {"train": (tokens, ~val)}
        else:
            train, held_out = divide(tokens, lengths, val)
            parts = {"train": (train, ~val), "val": (held_out, val)}
        for split, (chosen, documents) in parts.items():
            self.set.splits[split].append(chosen, lengths[documents], rows[documents])
            self._counts[f"{split}_documents"] += int(documents.sum())
            self._counts[f"{split}_tokens"] += len(chosen)

    def _documents(self, texts: list[str], report: Report) -> tuple[Ids, Lengths]:
        try:
            return self.engine.documents(texts)
        except EngineUnsupported as error:
            reference = self._reference()
            report("engine", used=reference.name, refused=self.engine.name, reason=str(error))
            self.engine, self.engine_refused = reference, str(error)
            return self.engine.documents(texts)


def divide(
    tokens: npt.NDArray[np.generic], lengths: Lengths, val: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    """Splits tokens into train's and val's, in order; slices runs of documents instead of single tokens."""
    ends = np.cumsum(lengths)
    last = np.flatnonzero(np.diff(val, append=~val[-1:]))  # of each run of one kind
    runs = np.split(tokens, ends[last])[:-1]
    of_kind: dict[bool, list[npt.NDArray[np.generic]]] = {False: [tokens[:0]], True: [tokens[:0]]}
    for run, document in zip(runs, last, strict=True):
        of_kind[bool(val[document])].append(run)
    return np.concatenate(of_kind[False]), np.concatenate(of_kind[True])


def val_decision(ratio: float, salt: int) -> Callable[[Iterable[memoryview]], npt.NDArray[np.bool_]]:
    """Returns the function that marks held-out documents: xxh3_64 of their UTF-8 is in the lowest `ratio`."""
    threshold, digest = int(ratio * 2**64), xxhash.xxh3_64_intdigest

    def held_out(documents: Iterable[memoryview]) -> npt.NDArray[np.bool_]:
        return np.array([digest(utf8, salt) < threshold for utf8 in documents], dtype=bool)

    return held_out


class EncodeThread:
    """A thread to build in, kept from file to file, because the native code caches words for each thread.

    A new thread starts with an empty cache.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "encode")

    def call(self, call: Callable[P, Result], *args: P.args, **options: P.kwargs) -> Result:
        """Runs the call in the thread; returns or raises its result."""
        return self._thread.submit(call, *args, **options).result()

    def renew(self) -> None:
        """Ends the thread and frees its cache; the next call starts another thread."""
        self._thread.shutdown()
        self._thread = ThreadPoolExecutor(1, "encode")
