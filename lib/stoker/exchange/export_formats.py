"""Exports each split's stream of tokens, set after set, in the forms of other trainers.

hf-arrow, for `datasets.load_from_disk`: Arrow streams of rows of a fixed length, and two JSON files. A record
batch is small and has no offsets, so no number of values is too large for it.

nanogpt: train.bin and val.bin, raw little-endian numbers, with no token left out. nanoGPT draws random
windows from them; the last possible window begins block_size + 1 tokens before the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.cli.output import Sink, write_json
from stoker.exchange.export_sets import Numbers, OfferedSet
from stoker.store.files import canonical_json, make_dir

COLUMN = "input_ids"
FILE_TOKENS = 1 << 28  # in a file: 512 MiB, or 1 GiB with four bytes each
UINT32_NOTE = "nanoGPT's train.py reads uint16: in a copy of it, write np.uint32 in both calls of np.memmap"

Progress = Callable[[int], None]


def export_arrow(
    sets: Sequence[OfferedSet], splits: Sequence[str], length: int, out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes the splits: one as a Dataset, several as a DatasetDict; returns the fields of the note."""
    pa.set_memory_pool(pa.system_memory_pool())
    rows, tails = {}, {}
    for split in splits:
        directory = out / split if len(splits) > 1 else out
        make_dir(directory)
        rows[split] = _write_split(sets, split, length, directory, progress)
        tails[split] = sum(one.tokens(split) for one in sets) % length
    if len(splits) > 1:
        write_json(out / "dataset_dict.json", {"splits": list(splits)})
    return {"row": length, "rows": rows, "tail_tokens": tails}


def _write_split(
    sets: Sequence[OfferedSet], split: str, length: int, directory: Path, progress: Progress
) -> int:
    """Writes one Dataset; returns its number of rows."""
    lists = pa.list_(pa.type_for_alias(sets[0].manifest.dtype), length)  # of a fixed size: without offsets
    schema = pa.schema([(COLUMN, lists)])
    columns = _rows(sets, split, length)
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
    for piece in _pieces(sets, split):
        values = np.concatenate([rest, piece])
        whole = values.size - values.size % length
        if whole:
            yield pa.FixedSizeListArray.from_arrays(pa.array(values[:whole]), length)
        rest = values[whole:]


def _pieces(sets: Sequence[OfferedSet], split: str) -> Iterator[Numbers]:
    return (piece for one in sets for piece in one.pieces(split))


def _write_notes(
    sets: Sequence[OfferedSet], split: str, length: int, directory: Path, names: Sequence[str]
) -> None:
    """Writes the two files by which old and new versions of `datasets` recognise a Dataset."""
    value = {"dtype": sets[0].manifest.dtype, "_type": "Value"}
    info = {
        "citation": "",
        "description": f"{split} tokens exported by Stoker, {length} in a row; see meta.json.",
        "features": {COLUMN: {"feature": value, "_type": "Sequence", "length": length}},
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


def export_nanogpt(
    sets: Sequence[OfferedSet], splits: Sequence[str], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes the splits that have tokens; returns the fields of the note. `progress` gets tokens written."""
    files: dict[str, Any] = {}
    for split in splits:
        tokens = sum(one.tokens(split) for one in sets)
        if not tokens:
            continue  # an empty file cannot be mapped
        with Sink(out / f"{split}.bin") as sink:
            for piece in _pieces(sets, split):
                sink.write(piece.data)
                progress(piece.size)
        files[f"{split}.bin"] = {"tokens": tokens, "size": sink.size, "sha256": sink.sha256}
    notes = [UINT32_NOTE] if sets[0].manifest.dtype == "uint32" else []
    return {"files": files, "tail_tokens": dict.fromkeys(splits, 0), "notes": notes}
