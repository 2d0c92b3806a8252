"""Runs one pattern of `stoker memory diagnose`: `python -m stoker.memory.pattern_worker`.

Task: {"pattern", "parquet", "text_column", "tokenizer", "documents"}. Result: the documents, their tokens,
and the resident bytes before and after. A round before that keeps nothing fills pools and caches, whose
growth would hide that of a small file.
"""

from __future__ import annotations

import stoker.shards.format.thread_limits  # noqa: F401 - its variables; the allocators stay as in any program

# isort: split
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.corpus.readers.reader import reader_of
from stoker.kit.workers.child import Report, paced, run_worker
from stoker.memory.memory_patterns import ACCUMULATE, READ, RELEASE
from stoker.shards.build.memory_use import give_back, resident_bytes
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import reload_tokenizer


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Reads the documents, and does with them what the pattern says."""
    pattern = task["pattern"]
    engine = HFEngine(reload_tokenizer(Path(task["tokenizer"])))  # also to read only: the same start for all
    progress = paced(lambda done: report("progress", documents=done))
    kept: list[list[int]] = []
    begin_bytes = 0
    for is_measured in (False, True):
        begin_bytes, documents, tokens = resident_bytes(), 0, 0
        for texts in _texts(task):
            documents += len(texts)
            if pattern != READ:
                lists = _tokenized(engine, texts)
                tokens += sum(map(len, lists))
                if is_measured and pattern in (ACCUMULATE, RELEASE):
                    kept += lists
                del lists
            if pattern == RELEASE:
                give_back()
            progress(documents)
    sizes = {"begin_bytes": begin_bytes, "end_bytes": resident_bytes()}
    return {"documents": documents, "tokens": tokens, **sizes, "kept": len(kept)}


def _texts(task: dict[str, Any]) -> Iterator[list[str]]:
    """Yields the documents, batch by batch."""
    left, parquet = int(task["documents"]), Path(task["parquet"])
    for batch in reader_of(parquet).open_rows(parquet, task["text_column"]).batches():
        yield [text for text in batch.texts if text is not None][:left]
        left -= batch.rows - batch.texts.count(None)
        if left <= 0:
            return


def _tokenized(engine: HFEngine, texts: list[str]) -> list[list[int]]:
    """Returns each document's ids as a list, which is what a loop over a tokenizer gets."""
    ids, lengths = engine.encode(texts)
    flat, lists, begin = ids.tolist(), [], 0
    for length in lengths.tolist():
        lists.append(flat[begin : begin + length])
        begin += length
    return lists


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
