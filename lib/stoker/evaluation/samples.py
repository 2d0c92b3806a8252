"""The samples of an evaluation: what a model made of each document, in one compressed file of JSON lines.

A line is {"metric": "<task>/<name>", "doc", "value", "weight"}, of a prompt case also its id and the answer.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from stoker.store.files import canonical_json, make_dir, write_atomic
from stoker.store.record import parse_json

Rows = Sequence[Mapping[str, Any]]
Scored = tuple[dict[str, Any], Rows]  # what a line of the record says of scores, and the samples


def write_samples(file: Path, rows: Rows, most_bytes: int) -> dict[str, Any]:
    """Writes the samples durably; returns what a line of the record says of them.

    `most_bytes` holds before compression. The same rows give the same bytes.
    """
    lines = [canonical_json(row) + b"\n" for row in rows]
    ends = accumulate(map(len, lines))
    kept = [line for line, end in zip(lines, ends, strict=True) if end <= most_bytes]
    data = gzip.compress(b"".join(kept), mtime=0)
    make_dir(file.parent)
    write_atomic(file, data)
    sha256 = hashlib.sha256(data).hexdigest()
    return {"samples": file.name, "samples_sha256": sha256, "samples_missing": len(lines) - len(kept)}


def read_samples(file: Path) -> Rows:
    """Returns the rows of a file; raises OSError, EOFError or ValueError where they cannot be read."""
    try:
        data = gzip.decompress(file.read_bytes())
    except zlib.error as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    return [parse_json(line) for line in data.splitlines()]


def by_metric(rows: Rows) -> dict[str, Rows]:
    """Returns the rows of each metric."""
    names = dict.fromkeys(row["metric"] for row in rows)
    return {name: [row for row in rows if row["metric"] == name] for name in names}
