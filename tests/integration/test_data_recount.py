"""An independent recount: pyarrow, HF tokenizers, numpy and xxhash against what the daemons published.

Nothing of the project counts here; its daemons are only run, and what lies on disk is read by its formats.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import xxhash
from tokenizers import Tokenizer

from support.parquet import flip_page, write_fineweb
from support.pipelines import make_pipeline

MIN_CHARS, VAL_RATIO = 60, 0.1


def recount(
    parquet: Path, tokenizer: Tokenizer, salt: int
) -> tuple[dict[str, list[list[int]]], Counter[str]]:
    """Each split's documents as ids with their end-of-text, and the dropped rows by reason, row by row."""
    documents: dict[str, list[list[int]]] = {"train": [], "val": []}
    dropped: Counter[str] = Counter()
    for text in pq.read_table(parquet, columns=["text"]).column("text").to_pylist():
        if text is None:
            dropped["null"] += 1
        elif len(text) < MIN_CHARS:
            dropped["min_chars"] += 1
        else:
            held_out = xxhash.xxh3_64_intdigest(text.encode(), salt) < int(VAL_RATIO * 2**64)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            documents["val" if held_out else "train"].append([*ids, 0])
    return documents, dropped


def stored(folder: Path, split: str) -> tuple[np.ndarray, list[int]]:
    """The split's tokens over all files, and where each document ends in its file."""
    tokens, lengths = [], []
    for file in sorted(folder.glob(f"{split}-*.bin")):
        tokens.append(np.fromfile(file, dtype="<u2"))
        ends = np.fromfile(file.with_suffix(".idx"), dtype="<u8")
        assert len(tokens[-1]) == (ends[-1] if len(ends) else 0)
        lengths += np.diff(ends, prepend=0).tolist()
    return np.concatenate(tokens), lengths


def test_every_row_is_counted_and_every_token_is_where_an_independent_reading_puts_it(tmp_path: Path) -> None:
    data = make_pipeline(
        tmp_path,
        dataset__filters={"min_chars": MIN_CHARS},
        shard__val_ratio=VAL_RATIO,
        shard__shard_tokens=5000,
    )
    for number in range(3):
        write_fineweb(data.source / f"{number:03d}.parquet", 200, seed=number, row_group=64)
    injected = pq.read_table(data.source / "001.parquet").to_pylist()
    injected[3]["text"] = (
        "A document that says <|endoftext|> in its middle, and means the words, not the end of it."
    )
    pq.write_table(
        pq.read_table(data.source / "001.parquet").from_pylist(injected), data.source / "001.parquet"
    )
    flip_page(data.source / "002.parquet", row_group=1)

    data.drain()

    pin = json.loads(data.pipeline.layout.dataset("prose").read_bytes())
    tokenizer = Tokenizer.from_file(str(data.pipeline.layout.datasets / pin["tokenizer"]["file"]))
    tokenizer.encode_special_tokens = True  # text stays text
    assert tokenizer.token_to_id("<|endoftext|>") == pin["tokenizer"]["eot"] == 0
    by_source = {
        json.loads((folder / "manifest.json").read_bytes())["source"]["sha256"]: folder
        for folder in (data.pipeline.hot / "shards" / "prose").iterdir()
    }
    assert len(by_source) == 2
    for parquet in sorted(data.source.iterdir())[:2]:
        folder = by_source[hashlib.sha256(parquet.read_bytes()).hexdigest()]
        books = json.loads((folder / "manifest.json").read_bytes())["books"]
        documents, dropped = recount(parquet, tokenizer, pin["build"]["val_salt"])
        assert books["rows"] == pq.ParquetFile(parquet).metadata.num_rows
        assert books["dropped"] == dropped
        assert books["rows"] == books["documents"] + sum(dropped.values())
        for split, expected in documents.items():
            tokens, lengths = stored(folder, split)
            assert lengths == [len(document) for document in expected]
            assert tokens.tolist() == [token for document in expected for token in document]
            assert books[split] == {"documents": len(expected), "tokens": len(tokens)}
        for line in (folder / "SHA256SUMS").read_text().splitlines():
            digest, name = line.split("  ")
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
