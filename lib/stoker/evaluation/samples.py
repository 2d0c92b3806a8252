"""The samples of an evaluation: a value for each document, in one compressed file of JSON lines.

A line is {"task", "doc", "values": {metric: [value, weight]}}, of a prompt case also its id and answer.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from stoker.store.files import canonical_json, make_dir, write_atomic
from stoker.store.record import parse_json

Row = Mapping[str, Any]
Values = dict[str, dict[str, tuple[float, float]]]  # by metric `<task>/<name>` and document: value, weight


def write_samples(file: Path, rows: Sequence[Row], most_bytes: int) -> dict[str, Any]:
    """Writes the samples durably; returns what a line of the record says of them.

    `most_bytes` holds before compression. The same rows give the same bytes.
    """
    lines = [canonical_json(row) + b"\n" for row in rows]
    ends = accumulate(map(len, lines))
    kept = [line for line, end in zip(lines, ends, strict=True) if end <= most_bytes]
    data = gzip.compress(b"".join(kept), mtime=0)
    make_dir(file.parent)
    write_atomic(file, data)
    return {
        "samples": file.name,
        "samples_sha256": hashlib.sha256(data).hexdigest(),
        "samples_missing": len(lines) - len(kept) + sum(map(lacks_value, rows)),
    }


def lacks_value(row: Row) -> bool:
    """Returns whether a metric of a document is no number."""
    return any(value is None for value, _ in row["values"].values())


def read_samples(file: Path) -> list[Row]:
    """Returns the rows of a file; raises OSError, EOFError or ValueError where they cannot be read."""
    return [parse_json(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def values_of(rows: Iterable[Row]) -> Values:
    """Returns the values of each metric; a document without a value is left out."""
    values: Values = {}
    for row in rows:
        for name, (value, weight) in row["values"].items():
            by_document = values.setdefault(f"{row['task']}/{name}", {})
            if value is not None:
                by_document[row["doc"]] = (value, weight)
    return values
