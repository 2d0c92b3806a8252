"""Small shard sets and plans for tests: what the plan's readers need of a set, written by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stoker.plan.log import Entry, Plan, Segment, segment_key


def write_set(
    root: Path,
    name: str,
    train: Sequence[Sequence[int]],
    *,
    val: Sequence[Sequence[int]] = (),
    dtype: str = "uint16",
    vocab_size: int = 1000,
) -> tuple[str, str]:
    """Write a set whose streams lie in one file per list of ids; returns (key, manifest sha256)."""
    key = hashlib.sha256(name.encode()).hexdigest()
    directory = root / key[:16]
    directory.mkdir(parents=True)
    files: dict[str, dict[str, object]] = {}
    for stream, parts in (("train", train), ("val", val)):
        for number, ids in enumerate(parts):
            data = np.asarray(ids, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
            file = f"{stream}-{number:05d}.bin"
            (directory / file).write_bytes(data)
            files[file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "tokens": len(ids)}
    manifest = json.dumps(
        {"v": 1, "key": key, "dtype": dtype, "tokenizer": {"vocab_size": vocab_size}, "files": files}
    )
    (directory / "manifest.json").write_text(manifest)
    return key, hashlib.sha256(manifest.encode()).hexdigest()


def fake_set(name: str) -> tuple[str, str]:
    """A key and a manifest hash for a set that is nowhere."""
    return hashlib.sha256(name.encode()).hexdigest(), hashlib.sha256(b"manifest" + name.encode()).hexdigest()


def segment(
    n: int,
    windows: int,
    *,
    seq_len: int = 8,
    epoch: int = 0,
    sets: Sequence[tuple[str, str]] = (),
    tail: int = 1,
) -> Segment:
    """A segment of that many windows; its sets are made up unless given."""
    named = tuple(sets) or (fake_set(f"set-{epoch}-{n}"),)
    return Segment(n, epoch, named, seq_len, windows, tail, segment_key(1, n))


def plan_of(*entries: Entry) -> Plan:
    """A plan that was never written; its head means nothing."""
    return Plan(tuple(entries), "0" * 64)
