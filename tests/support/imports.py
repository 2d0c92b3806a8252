"""What other programs leave behind, written by hand, and the shard sets that `stoker import` once made."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stoker.corpus.records.dataset import DatasetPin, read_pin, write_pin
from stoker.corpus.records.sources import SPLITS, Books, Source, write_source
from stoker.shards.format.identity import dtype_for, set_key
from stoker.shards.format.manifest import (
    BUILD_NOTE,
    TOKEN_BYTES,
    DataFile,
    EndOfText,
    Manifest,
    data_name,
    write_manifest,
)
from stoker.store.direct import hash_file
from stoker.store.files import canonical_json
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


def import_set(
    layout: StateLayout,
    hot: HotLayout,
    pin: DatasetPin,
    train: Sequence[int],
    *,
    where: EndOfText | None = "after",
    path: str = "import/web",
) -> Source:
    """Publish and record a shard set of these tokens, byte for byte as the earlier `stoker import` did."""
    tokenizer, dtype = pin.tokenizer, dtype_for(pin.tokenizer.vocab_size)
    building = hot.building / "import-by-a-test"
    building.mkdir(parents=True)
    files: dict[str, DataFile] = {}
    streams = {"train": np.asarray(train, dtype), "val": np.empty(0, dtype)}
    for split in SPLITS:
        parts = _shards(streams[split], tokenizer.eot, where, int(pin.build["shard_tokens"]))
        for number, (tokens, ends) in enumerate(parts):
            for kind, data in (("bin", tokens), ("idx", ends)):
                file = building / data_name(split, number, kind)
                data.tofile(file)
                counted = (tokens.size, ends.size if where else None) if kind == "bin" else ()
                files[file.name] = DataFile(file.stat().st_size, hash_file(file).sha256, *counted)
    hashes = {split: hashlib.sha256(ids.tobytes()).hexdigest() for split, ids in streams.items()}
    content = hashlib.sha256(canonical_json({"import": 1, "dtype": dtype, **hashes})).hexdigest()
    bins = {split: [files[name] for name in files if name.startswith(f"{split}-")] for split in SPLITS}
    documents = [sum(file.documents or 0 for file in bins[split]) if where else None for split in SPLITS]
    total = sum(one or 0 for one in documents) if where else None
    tokens = len(train)
    books = Books(None, total, None, tokens, documents[0], tokens, documents[1], 0, None)
    manifest = Manifest(
        dataset=pin.dataset,
        key=set_key(content, pin.build_id),
        build_id=pin.build_id,
        source_size=tokens * TOKEN_BYTES[dtype],
        source_sha256=content,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        eot=tokenizer.eot,
        dtype=dtype,
        books=books,
        files=files,
        end_of_text=where,
    )
    write_manifest(building, manifest)
    (building / BUILD_NOTE).write_text('{"imported":{"from":"nanogpt"},"source":"import/web","v":1}\n')
    target = hot.shards(pin.dataset) / manifest.key[:16]
    target.parent.mkdir(parents=True, exist_ok=True)
    building.rename(target)
    seen = Source(pin.dataset, path, manifest.source_size, content, imported=True)
    source = seen.moved("proven", key=manifest.key, manifest_sha256=manifest.sha256, books=books)
    write_source(layout, source)
    if (kept := read_pin(layout, pin.dataset)) is not None:
        write_pin(layout, replace(kept, listing=(*kept.listing, path)))
    return source


def _shards(ids: Any, eot: int, where: str | None, most: int) -> Iterator[tuple[Any, Any]]:
    """The tokens of each shard, and where its documents end: full with the first that ends behind `most`."""
    places = np.flatnonzero(ids == eot) + (where == "after")
    if where is None:
        places = np.arange(most, ids.size, most)
    start, ends = 0, list[int]()
    for end in [*(int(place) for place in places if 0 < place < ids.size), ids.size]:
        ends.append(end - start)
        if end - start >= most or end == ids.size:
            yield ids[start:end], np.array([one for one in ends if one], "<u8")
            start, ends = end, []
