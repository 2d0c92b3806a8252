"""`stoker memory diagnose`: reads and tokenizes a parquet file in four ways, and names the one that grows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import PATH, TEXT, answer, json_option
from stoker.config.units import format_bytes
from stoker.memory.memory_patterns import PATTERNS, PatternRun, Verdict, judge
from stoker.store.errors import DataError, UsageError

TEXT_BYTES = 8 << 20  # accumulating the tokens of so much text takes some 100 MB
TRAIN_BYTES, VOCAB_SIZE = 2 << 20, 8192
ROW = "{:<20} {:>12} {:>12} {:>12} {:>15} {:>13}"
HEAD = ROW.format("pattern", "begin", "end", "grown", "bytes/document", "bytes/token")


@click.command(epilog="Example: stoker memory diagnose /data/fineweb/000_00000.parquet")
@click.argument("parquet", metavar="PARQUET", type=PATH)
@click.option("--tokenizer", metavar="JSON", type=PATH, help="A tokenizer.json. [default: one trained here]")
@click.option("--text-column", type=TEXT, default="text", help="The column that holds the text.")
@click.option("--documents", type=click.IntRange(1), help="How many. [default: 8 MiB of text]")
@json_option
def diagnose(
    parquet: Path, tokenizer: Path | None, text_column: str, documents: int | None, *, as_json: bool
) -> None:
    """Find what grows as a parquet file is read.

    The first documents of PARQUET are read only; tokenized and dropped; tokenized and kept (accumulate); and
    kept with a release of free memory after each batch (gc, Arrow's pool, malloc_trim): each in a process of
    its own, with the reference tokenizer. A round before that keeps nothing fills pools and caches. Exit
    codes: 65 the file or the tokenizer cannot be used; 69 a process ended before it was done; 74 the file
    cannot be read.
    """
    from stoker.cli.worker_jobs import Workers
    from stoker.kit.terminal import Footer
    from stoker.kit.workers.pool import Activity

    if not parquet.is_file():
        raise UsageError(f"{parquet} is no file; name a parquet file")
    runs, footer = dict[str, PatternRun](), Footer()
    activity = Activity("pattern", "stoker.memory.pattern_worker")
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder, Workers() as workers:
        frozen = Path(folder) / "tokenizer.json"
        texts = _Texts(parquet, text_column, documents)
        frozen.write_bytes(texts.tokenizer(tokenizer))
        task = {"parquet": str(parquet), "text_column": text_column, "tokenizer": str(frozen)}
        for pattern, name in PATTERNS.items():

            def hear(message: Any, name: str = name) -> None:
                footer.show(lambda width: f"{name}: {message['documents']:,} documents"[:width])

            asked = {**task, "pattern": pattern, "documents": texts.documents}
            result = workers.run(activity, asked, name, hear)
            runs[pattern] = PatternRun(*(result[key] for key in PatternRun.__annotations__))
            footer.clear()
    verdict = judge(runs)
    answer(_report(parquet, runs, verdict), _lines(runs, verdict), as_json=as_json)


class _Texts:
    """The documents to diagnose with: so many, or as many as hold 8 MiB of text."""

    def __init__(self, parquet: Path, text_column: str, wanted: int | None) -> None:
        self._parquet, self._text_column, self._wanted = parquet, text_column, wanted
        self.documents = 0

    def tokenizer(self, given: Path | None) -> bytes:
        """Counts the documents, and returns the tokenizer given, or one trained on the first of them."""
        from stoker.corpus.readers.finding import BadFile
        from stoker.shards.tokenize.tokenizer import examine_tokenizer, train_tokenizer

        if given is not None:
            data = given.read_bytes()
            examine_tokenizer(data, str(given))
        try:
            first = list(self._first())
        except BadFile as error:
            raise DataError(f"{self._parquet}: {error}") from error
        if not self.documents:
            raise DataError(f"{self._parquet} holds no text in its column {self._text_column!r}")
        return data if given is not None else train_tokenizer(first, VOCAB_SIZE)

    def _first(self) -> Iterator[list[str]]:
        """Yields texts to train on, and counts on."""
        from stoker.corpus.readers.reader import reader_of

        size = 0
        for batch in reader_of(self._parquet).open_rows(self._parquet, self._text_column).batches():
            texts = [text for text in batch.texts if text is not None]
            if size < TRAIN_BYTES:
                yield texts
            self.documents += len(texts)
            size += sum(map(len, batch.utf8))
            if self._wanted is not None and self.documents >= self._wanted:
                self.documents = self._wanted
                break
            if self._wanted is None and size >= TEXT_BYTES:
                break


def _report(parquet: Path, runs: dict[str, PatternRun], verdict: Verdict) -> dict[str, Any]:
    patterns = {
        name: {
            **asdict(run),
            "grown_bytes": run.grown_bytes,
            "bytes_per_document": run.per_document(),
            "bytes_per_token": run.per_token(),
        }
        for name, run in runs.items()
    }
    return {"parquet": str(parquet), "patterns": patterns, **asdict(verdict)}


def _lines(runs: dict[str, PatternRun], verdict: Verdict) -> Iterator[str]:
    yield HEAD
    for name, run in runs.items():
        sizes = (format_bytes(size) for size in (run.begin_bytes, run.end_bytes, run.grown_bytes))
        a_token = run.per_token()
        shown = "" if a_token is None else f"{a_token:.1f}"
        yield ROW.format(PATTERNS[name], *sizes, f"{run.per_document():,.0f}", shown)
    yield verdict.sentence
