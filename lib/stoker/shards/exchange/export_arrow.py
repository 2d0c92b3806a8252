"""Exports tokens in the form that `datasets.load_from_disk` reads: Arrow streams and two JSON files.

A row is `length` tokens of the split's stream, set after set, or one document where length is None. Each
record batch is small and has its own offsets, or none, so no number of values is too large for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.shards.exchange.export_out import Sink, write_json
from stoker.shards.exchange.export_sets import Numbers, OfferedSet
from stoker.store.files import canonical_json, make_dir

COLUMN = "input_ids"
FILE_TOKENS = 1 << 28  # in a file: 512 MiB, or 1 GiB with four bytes each

Progress = Callable[[int], None]


def export_arrow(
    sets: Sequence[OfferedSet], splits: Sequence[str], length: int | None, out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes the splits: one as a Dataset, several as a DatasetDict; returns the fields of the note."""
    pa.set_memory_pool(pa.system_memory_pool())
    rows, tails = {}, {}
    for split in splits:
        directory = out / split if len(splits) > 1 else out
        make_dir(directory)
        rows[split] = _write_split(sets, split, length, directory, progress)
        tails[split] = sum(one.tokens(split) for one in sets) % length if length else 0
    if len(splits) > 1:
        write_json(out / "dataset_dict.json", {"splits": list(splits)})
    return {"row": length or "document", "rows": rows, "tail_tokens": tails}


def _write_split(
    sets: Sequence[OfferedSet], split: str, length: int | None, directory: Path, progress: Progress
) -> int:
    """Writes one Dataset; returns its number of rows."""
    dtype = sets[0].manifest.dtype
    # A list of fixed size has no offsets.
    lists = pa.list_(pa.type_for_alias(dtype), length or -1)
    schema = pa.schema([(COLUMN, lists)])
    columns = _documents(sets, split) if length is None else _rows(sets, split, length)
    names: list[str] = []
    rows = 0
    column = next(columns, None)
    while column is not None or not names:  # a split without rows becomes a file without batches
        names.append(f"data-{len(names):05d}.arrow")
        held = 0
        with Sink(directory / names[-1]) as sink, pa.ipc.new_stream(sink, schema) as stream:
            while column is not None and held < FILE_TOKENS:
                stream.write_batch(pa.record_batch([column], schema=schema))
                tokens = len(column.flatten())
                held, rows = held + tokens, rows + len(column)
                progress(tokens)
                column = next(columns, None)
    _write_notes(sets, split, length, directory, names)
    return rows


def _rows(sets: Sequence[OfferedSet], split: str, length: int) -> Iterator[pa.Array]:
    """Yields the split in rows of tokens, without the tokens that do not fill a last row."""
    rest: Numbers = np.empty(0, sets[0].manifest.dtype)
    for piece in (piece for one in sets for piece in one.pieces(split)):
        values = np.concatenate([rest, piece])
        whole = values.size - values.size % length
        if whole:
            yield pa.FixedSizeListArray.from_arrays(pa.array(values[:whole]), length)
        rest = values[whole:]


def _documents(sets: Sequence[OfferedSet], split: str) -> Iterator[pa.Array]:
    for one in sets:
        for tokens, ends in one.documents(split):
            offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
            yield pa.ListArray.from_arrays(offsets, pa.array(tokens))


def _write_notes(
    sets: Sequence[OfferedSet], split: str, length: int | None, directory: Path, names: Sequence[str]
) -> None:
    """Writes the two files by which old and new versions of `datasets` recognise a Dataset."""
    what = f"{length} tokens of the stream" if length else "a document, end-of-text included"
    dtype = sets[0].manifest.dtype
    feature: dict[str, Any] = {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "Sequence"}
    info = {
        "citation": "",
        "description": f"{split} tokens exported by Stoker; a row is {what}. meta.json tells more.",
        "features": {COLUMN: feature | ({"length": length} if length else {})},
        "homepage": "",
        "license": "",
    }
    write_json(directory / "dataset_info.json", info)
    identity = {"sets": [one.manifest_sha256 for one in sets], "split": split, "row": length}
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": hashlib.sha256(canonical_json(identity)).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    write_json(directory / "state.json", state)
