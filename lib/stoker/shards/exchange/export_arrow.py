"""Tokens out as `datasets.load_from_disk` reads them: Arrow streams, and two files of JSON beside them.

A row is `length` tokens of the split's stream, set after set, or one document. Each record batch is small and
has offsets of its own, or none: so there is no number of values that a column could not hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.shards.exchange.array_writer import Sink
from stoker.shards.exchange.export_out import Output
from stoker.shards.exchange.export_sets import PIECE_TOKENS, Numbers, OfferedSet
from stoker.store.errors import DataError
from stoker.store.files import canonical_json

COLUMN = "input_ids"
FILE_TOKENS = 1 << 28  # after so many a new file begins: 512 MiB, or 1 GiB of four bytes each
BATCH_DOCUMENTS = 10_000
MOST_IN_A_DOCUMENT = 2**31 - 1  # offsets within a batch are int32

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Form:
    """What a row is: `length` tokens, or with None a document."""

    length: int | None

    def schema(self, dtype: str) -> pa.Schema:
        """The one column; a list of fixed size has no offsets at all."""
        value = pa.type_for_alias(dtype)
        return pa.schema([(COLUMN, pa.list_(value) if self.length is None else pa.list_(value, self.length))])

    def features(self, dtype: str) -> dict[str, Any]:
        """The same as `datasets` calls it, old versions and new."""
        feature: dict[str, Any] = {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "Sequence"}
        return {COLUMN: feature if self.length is None else {**feature, "length": self.length}}

    def columns(self, sets: Sequence[OfferedSet], split: str) -> Iterator[pa.Array]:
        """The split in bounded columns; what does not fill a last row is left out."""
        if self.length is None:
            return _documents(sets, split)
        return _rows((piece for one in sets for piece in one.pieces(split)), self.length)

    def tail(self, tokens: int) -> int:
        """Tokens of a stream that fill no row."""
        return 0 if self.length is None else tokens % self.length


def export_arrow(
    sets: Sequence[OfferedSet], splits: Sequence[str], form: Form, output: Output, progress: Progress
) -> dict[str, Any]:
    """Write the splits: one as a Dataset, several as a DatasetDict; returns what is noted of them."""
    pa.set_memory_pool(pa.system_memory_pool())
    several = len(splits) > 1
    rows = {}
    for split in splits:
        directory = output.make_dir(split) if several else output.directory
        rows[split] = _write_split(sets, split, form, directory, progress)
    if several:
        output.write_json("dataset_dict.json", {"splits": list(splits)})
    tails = {split: form.tail(sum(one.tokens(split) for one in sets)) for split in splits}
    return {"row": "document" if form.length is None else form.length, "rows": rows, "tail_tokens": tails}


def _write_split(
    sets: Sequence[OfferedSet], split: str, form: Form, directory: Path, progress: Progress
) -> int:
    """Write one Dataset; returns its rows."""
    dtype = sets[0].manifest.dtype
    names: list[str] = []
    rows = 0
    columns = form.columns(sets, split)
    column = next(columns, None)
    while column is not None or not names:  # a split without a row is a file without a batch
        names.append(f"data-{len(names):05d}.arrow")
        with Sink(directory / names[-1]) as sink:
            schema, held = form.schema(dtype), 0
            with pa.ipc.new_stream(sink, schema) as stream:
                while column is not None and held < FILE_TOKENS:
                    stream.write_batch(pa.record_batch([column], schema=schema))
                    tokens = len(column.flatten())
                    held, rows = held + tokens, rows + len(column)
                    progress(tokens)
                    column = next(columns, None)
    _write_json(directory / "dataset_info.json", _info(form, split, dtype))
    _write_json(directory / "state.json", _state(sets, split, form, names))
    return rows


def _rows(pieces: Iterator[Numbers], length: int) -> Iterator[pa.Array]:
    rest: Numbers | None = None
    for piece in pieces:
        values = piece if rest is None or not rest.size else np.concatenate([rest, piece])
        whole = values.size - values.size % length
        if whole:
            yield pa.FixedSizeListArray.from_arrays(pa.array(values[:whole]), length)
        rest = values[whole:]


def _documents(sets: Sequence[OfferedSet], split: str) -> Iterator[pa.Array]:
    for one in sets:
        for tokens, ends in one.documents(split, PIECE_TOKENS, BATCH_DOCUMENTS):
            if tokens.size > MOST_IN_A_DOCUMENT:
                raise DataError(
                    f"{one.places[0]}: a document of {tokens.size:,} tokens is too long for a row; use --rows"
                )
            offsets = np.concatenate([[0], ends]).astype(np.int32)
            yield pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))


def _info(form: Form, split: str, dtype: str) -> dict[str, Any]:
    what = (
        "a document, end-of-text included" if form.length is None else f"{form.length} tokens of the stream"
    )
    return {
        "citation": "",
        "description": f"{split} tokens exported by Stoker; a row is {what}. meta.json tells more.",
        "features": form.features(dtype),
        "homepage": "",
        "license": "",
    }


def _state(sets: Sequence[OfferedSet], split: str, form: Form, names: Sequence[str]) -> dict[str, Any]:
    identity = {"sets": [one.manifest_sha256 for one in sets], "split": split, "row": form.length}
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": hashlib.sha256(canonical_json(identity)).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }


def _write_json(path: Path, body: dict[str, Any]) -> None:
    with Sink(path) as sink:
        sink.write(canonical_json(body) + b"\n")
