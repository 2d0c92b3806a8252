"""What other projects leave behind, written by hand: token files with and without header, and notes."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stoker.corpus.records.dataset import DatasetPin, TokenizerPin
from stoker.exchange.import_set import ImportTask
from stoker.store.layout import HotLayout, StateLayout

EOT = 0


def streams(
    *, documents: int = 40, seed: int = 1, where: str | None = "after", vocab_size: int = 300
) -> list[int]:
    """Seeded ids with end-of-text after or before each document, or with none."""
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(documents):
        text = [rng.randrange(1, vocab_size) for _ in range(rng.randint(3, 60))]
        ids += [*text, EOT] if where == "after" else [EOT, *text] if where == "before" else text
    return ids


def write_tokens(path: Path, ids: Sequence[int], dtype: str = "<u2") -> Path:
    """A raw file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.asarray(ids, dtype=dtype).tofile(path)
    return path


def write_with_header(path: Path, ids: Sequence[int], *, magic: int = 20240520, version: int = 1) -> Path:
    """A file behind 256 int32 of header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack("<3i", magic, version, len(ids)).ljust(1024, b"\0")
    path.write_bytes(head + np.asarray(ids, dtype="<u2" if version == 1 else "<u4").tobytes())
    return path


def write_predecessor(
    directory: Path,
    shards: Mapping[str, Sequence[Sequence[int]]],
    *,
    tokenizer: str | None = None,
    dtype: str = "<u2",
    **changes: Any,
) -> Path:
    """A folder of the predecessor's shards with its manifest; `changes` replace keys of it."""
    body: dict[str, Any] = {"input_files": ["batch-000.parquet"], "tokenizer_hash": tokenizer}
    for split, parts in shards.items():
        told = []
        for number, ids in enumerate(parts):
            name = f"{split}_{number:06d}.bin"
            write_tokens(directory / name, ids, dtype)
            told.append({"path": name, "tokens": len(ids)})
        body[split] = {"total_tokens": sum(map(len, parts)), "shards": told}
    (directory / "manifest.json").write_text(json.dumps({**body, **changes}))
    return directory


PINNED = hashlib.sha256(b"tokenizer").hexdigest()


def import_task(home: Path, place: Path, *, vocab_size: int = 300, **changes: Any) -> ImportTask:
    """The task for an import; its tokenizer is made up."""
    tokenizer = TokenizerPin("tokenizer.json", PINNED, vocab_size, EOT)
    task = ImportTask(
        place=place,
        layout=StateLayout(home / "state"),
        hot=HotLayout(home / "hot"),
        pin=DatasetPin("prose", 1, "ab" * 32, {"shard_tokens": 500}, tokenizer, {}),
        sources={},
        taken=(),
        floor=0,
        stated_tokenizer=None,
        trust_tokenizer=True,
    )
    return replace(task, **changes)
