"""`stoker memory diagnose`: names what grows in a recording, or as a parquet file is read and tokenized."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import PATH, TEXT, answer, json_option
from stoker.config.units import format_bytes
from stoker.store.errors import DataError, UsageError

VOCAB_SIZE = 8192
LEAST_BYTES, LEAST_DOCUMENTS = 4 << 20, 64  # smaller growth is that of allocators
# What each pattern does more than the one before: what grows, and the advice.
PATTERNS = {
    "read": ("reading", "though no row is kept and each was read before"),
    "tokenize": ("tokenizing", "though no token is kept and each text was seen before"),
    "release": ("accumulating", "as the tokens are kept: write them out, or keep an array of uint16"),
    "accumulate": ("allocators", "free and not given back: release (gc, Arrow's pool, malloc_trim) them"),
}
ROW = "{:<12} {:>12} {:>12} {:>12}"


@click.command(epilog="Example: stoker memory diagnose /data/fineweb/000_00000.parquet")
@click.argument("file", metavar="CSV|PARQUET", type=PATH)
@click.option("--tokenizer", metavar="JSON", type=PATH, help="A tokenizer.json. [default: one trained here]")
@click.option("--text-column", type=TEXT, default="text", help="The column that holds the text.")
@click.option("--documents", type=click.IntRange(1), help="How many. [default: 8 MiB of text]")
@json_option
def diagnose(
    file: Path, tokenizer: Path | None, text_column: str, documents: int | None, *, as_json: bool
) -> None:
    """Find what grows in a recording, or as a parquet file is read.

    Of a recording it names the program or kind of memory that grows most in the later half. The first
    documents of PARQUET are read only; tokenized and dropped; tokenized and kept, with a release of free
    memory after each batch (gc, Arrow's pool, malloc_trim); and kept without (accumulate): each in a process
    of its own, with the reference tokenizer. A round before that keeps nothing fills pools and caches. Exit
    codes: 65 the file or the tokenizer cannot be used; 69 a process ended before it was done; 74 the file
    cannot be read.
    """
    if not file.is_file():
        raise UsageError(f"{file} is no file; name a recording or a parquet file")
    if file.suffix.lower() == ".csv":
        from stoker.memory.picture import panel_of_recording, what_grows

        found = what_grows(panel_of_recording(file))
        answer({"recording": str(file), **found}, [found["sentence"]], as_json=as_json)
        return
    task = {"parquet": str(file), "text_column": text_column, "documents": documents}
    runs = _run(task, _tokenizer(tokenizer, file, text_column))
    verdict = judge(runs)
    sizes = {name: (run["begin_bytes"], run["end_bytes"], run["grown_bytes"]) for name, run in runs.items()}
    lines = [ROW.format("pattern", "begin", "end", "grown"), verdict["sentence"]]
    lines[1:1] = [ROW.format(name, *map(format_bytes, row)) for name, row in sizes.items()]
    answer({"parquet": str(file), "patterns": runs, **verdict}, lines, as_json=as_json)


def judge(runs: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Names what makes memory grow, by the run of each pattern: the largest step from one to the next."""
    steps, before = dict[str, int](), 0
    for name in PATTERNS:
        steps[name] = runs[name]["grown_bytes"] - before
        before = max(0, runs[name]["grown_bytes"])
    worst = max(steps, key=lambda name: steps[name])
    documents, tokens = (max(runs["accumulate"][name], 1) for name in ("documents", "tokens"))
    a_document, a_token = steps[worst] / documents, steps[worst] / tokens
    culprit: str | None
    culprit, advice = PATTERNS[worst]
    amount = f"{a_document:,.0f} bytes a document, {a_token:.1f} a token"
    sentence = f"{culprit.capitalize()}: this is what grows, by {amount}, {advice}."
    if documents < LEAST_DOCUMENTS:
        culprit, sentence = None, "No culprit: there are too few documents to tell."
    elif steps[worst] < LEAST_BYTES:
        culprit, sentence = None, f"No culprit: nothing grows by {format_bytes(LEAST_BYTES)}."
    figures = {"grown_bytes": steps[worst], "bytes_per_document": a_document, "bytes_per_token": a_token}
    return {"culprit": culprit, **figures, "sentence": sentence}


def _run(task: Mapping[str, Any], tokenizer: bytes) -> dict[str, dict[str, int]]:
    """Returns what each pattern measured."""
    from stoker.cli.worker_jobs import Workers
    from stoker.kit.workers.pool import Activity

    activity = Activity("pattern", "stoker.memory.pattern_worker")
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder, Workers() as workers:
        frozen = Path(folder) / "tokenizer.json"
        frozen.write_bytes(tokenizer)
        tasks = {name: {**task, "pattern": name, "tokenizer": str(frozen)} for name in PATTERNS}
        return {name: workers.run(activity, each, name) for name, each in tasks.items()}


def _tokenizer(given: Path | None, parquet: Path, column: str) -> bytes:
    """Returns the tokenizer given, or one trained on the first texts."""
    from stoker.corpus.readers.finding import BadFile
    from stoker.corpus.readers.reader import reader_of
    from stoker.shards.tokenize.tokenizer import examine_tokenizer, train_tokenizer

    try:
        batch = next(reader_of(parquet).open_rows(parquet, column).batches(), None)
    except BadFile as error:
        raise DataError(f"{parquet}: {error}") from error
    texts = [text for text in batch.texts if text is not None] if batch else []
    if not texts:
        raise DataError(f"{parquet} holds no text in its column {column!r}")
    data = given.read_bytes() if given else train_tokenizer([texts], VOCAB_SIZE)
    examine_tokenizer(data, str(given))
    return data
