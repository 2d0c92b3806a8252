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

import numpy as np

from stoker.corpus.readers.reader import reader_of
from stoker.kit.workers.child import Report, paced, run_worker
from stoker.shards.build.memory_use import give_back, resident_bytes
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import reload_tokenizer

TEXT_BYTES = 8 << 20  # accumulating the tokens of so much text takes some 100 MB


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    pattern = task["pattern"]
    engine = HFEngine(reload_tokenizer(Path(task["tokenizer"])))  # also to read only: the same start for all
    progress = paced(lambda done: report("progress", documents=done))
    kept: list[list[int]] = []
    begin = documents = tokens = 0
    for is_measured in (False, True):
        begin, documents, tokens = resident_bytes(), 0, 0
        for texts in _texts(task):
            documents += len(texts)
            if pattern != "read":
                ids, lengths = engine.encode(texts)
                # Lists, which is what a loop over a tokenizer gets.
                lists = [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]]
                tokens += len(ids)
                if is_measured and pattern in ("accumulate", "release"):
                    kept += lists
                del ids, lists
            if pattern == "release":
                give_back()
            progress(documents)
    end = resident_bytes()
    counts = {"documents": documents, "tokens": tokens, "kept": len(kept)}
    return {**counts, "begin_bytes": begin, "end_bytes": end, "grown_bytes": end - begin}


def _texts(task: dict[str, Any]) -> Iterator[list[str]]:
    """Yields the documents, batch by batch: so many, or 8 MiB of them."""
    count = size = 0
    parquet = Path(task["parquet"])
    for batch in reader_of(parquet).open_rows(parquet, task["text_column"]).batches():
        texts = [text for text in batch.texts if text is not None]
        yield texts if task["documents"] is None else texts[: task["documents"] - count]
        count, size = count + len(texts), size + sum(map(len, batch.utf8))
        if size >= TEXT_BYTES if task["documents"] is None else count >= task["documents"]:
            return


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
