"""The worker that chooses the engine for a file: `python -m stoker.shards.engine_worker`, a task a line.

Task: {"parquet", "source": {"sha256"}, "text_column", "tokenizer_file", "read_rows"}. It encodes a sample of
the file's text, and odd texts once a tokenizer, with the fast engine and with the reference. Result: `status`
sampled with `engine`, fastokens where both gave the same, else tokenizers with the `reason`; bad or changed
as the build worker says it. It can be stopped anywhere. With "prepare" and
"tokenizer_file" alone it loads both engines for the next task.
"""

from __future__ import annotations

from stoker.shards.one_thread import one_thread

# isort: split
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from stoker.kit.worker_main import Report, run_worker
from stoker.shards.engine import FASTOKENS, HF_TOKENIZERS, Engine, EngineUnsupported, make_engine
from stoker.shards.parquet import BadParquet
from stoker.shards.probes import probes
from stoker.shards.readers import READERS
from stoker.shards.sealing import still_staged
from stoker.shards.tokenizer import FrozenTokenizer, read_frozen, reload_tokenizer

PLACE_BYTES = 16 << 10  # of text from one place; the reference encodes some 4 MB a second
LEAST_PLACES, MOST_PLACES = 4, 16  # in the file, from as many row groups as it has
BYTES_A_PLACE = 32 << 20  # of the file: a sample is to cost little of what the build does
MOST_CHARS = 1 << 12  # of one document


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Choose the engine for one file."""
    one_thread()
    if "prepare" in task:
        return {"status": "prepared", "reason": _engines_for(Path(task["tokenizer_file"])).refused}
    parquet = Path(task["parquet"])
    try:
        engines = _engines_for(Path(task["tokenizer_file"]))
        refused = engines.refused
        report("phase", phase="sample")
        sample = _sample(parquet, str(task["text_column"]), str(task.get("reader", "parquet")))
        for place, texts in sample:
            refused = refused or engines.difference(texts, place)
    except BadParquet as error:
        if not still_staged(parquet, str(task["source"]["sha256"]), report):
            return {"status": "changed"}
        return {"status": "bad", **error.fields()}
    return {"status": "sampled", "engine": HF_TOKENIZERS if refused else FASTOKENS, "reason": refused}


def _sample(parquet: Path, text_column: str, reader: str) -> Iterator[tuple[str, list[str]]]:
    """Documents from places spread over the file, with words for where they are."""
    wanted = max(LEAST_PLACES, min(MOST_PLACES, parquet.stat().st_size // BYTES_A_PLACE))
    source = READERS[reader](parquet, text_column, (), 64)
    groups = [group for group, rows in enumerate(source.group_rows) if rows]
    spread = np.linspace(0, len(groups) - 1, min(wanted, len(groups))).round().astype(int)
    chosen = sorted({groups[place] for place in spread.tolist()}) if groups else []
    for group in chosen:
        for batch in islice(source.batches(group), max(1, wanted // len(chosen))):
            if batch.row_group != group:
                break
            texts, room = [], PLACE_BYTES
            for text in batch.texts:
                if text is not None and room > 0:
                    texts.append(text[: min(room, MOST_CHARS)])
                    room -= len(texts[-1])
            yield f"row group {group}, rows from {batch.row}", texts


@dataclass(frozen=True)
class _Engines:
    """Both engines for a tokenizer file; `refused` says why the fast one is out of the question, if it is."""

    fingerprint: str
    reference: Engine
    fast: Engine | None
    refused: str

    def difference(self, texts: list[str], where: str) -> str:
        """What the fast engine does differently on these texts, in words; empty where nothing."""
        return "" if self.fast is None else _difference(self.reference, self.fast, texts, where)


_kept: list[_Engines] = []  # one at most


def _engines_for(tokenizer_file: Path) -> _Engines:
    fingerprint = hashlib.sha256(read_frozen(tokenizer_file)).hexdigest()
    if not _kept or _kept[0].fingerprint != fingerprint:
        _kept.clear()
        _kept.append(_load(reload_tokenizer(tokenizer_file)))
    return _kept[0]


def _load(tokenizer: FrozenTokenizer) -> _Engines:
    reference = make_engine(HF_TOKENIZERS, tokenizer)
    fast: Engine | None = None
    try:
        fast = make_engine(FASTOKENS, tokenizer)
        refused = _difference(reference, fast, probes(tokenizer.special), "odd texts")
    except EngineUnsupported as error:
        refused = str(error)
    return _Engines(tokenizer.sha256, reference, None if refused else fast, refused)


def _difference(reference: Engine, fast: Engine, texts: list[str], where: str) -> str:
    try:
        found, lengths = fast.documents(texts)
    except EngineUnsupported as error:
        return f"{error} ({where})"
    wanted, wanted_lengths = reference.documents(texts)
    if np.array_equal(found, wanted) and np.array_equal(lengths, wanted_lengths):
        return ""
    for number, text in enumerate(texts):
        if not np.array_equal(fast.documents([text])[0], reference.documents([text])[0]):
            return f"{fast.name} differs from {reference.name} on {where}, text {number}: {text[:80]!r}"
    return f"{fast.name} differs from {reference.name} on {where}, taken together"


def serve() -> NoReturn:
    """Be the worker's process."""
    run_worker(main, stop_anywhere=True, many=True)


if __name__ == "__main__":
    serve()
