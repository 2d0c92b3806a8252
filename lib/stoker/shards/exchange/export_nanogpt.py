"""Exports tokens in nanoGPT's form: train.bin and val.bin, raw little-endian numbers, and a JSON note.

No token is left out: each file is the split's stream, set after set. nanoGPT draws random windows from it;
the last possible window begins block_size + 1 tokens before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stoker.shards.exchange.export_out import Sink
from stoker.shards.exchange.export_sets import OfferedSet

UINT32_NOTE = "nanoGPT's train.py reads uint16: in a copy of it, write np.uint32 in both calls of np.memmap"


def export_nanogpt(
    sets: Sequence[OfferedSet], splits: Sequence[str], out: Path, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Writes the splits that have tokens; returns the fields of the note. `progress` gets tokens written."""
    files: dict[str, Any] = {}
    for split in splits:
        tokens = sum(one.tokens(split) for one in sets)
        if not tokens:
            continue  # an empty file cannot be mapped
        with Sink(out / f"{split}.bin") as sink:
            for piece in (piece for one in sets for piece in one.pieces(split)):
                sink.write(piece.data)
                progress(piece.size)
        files[f"{split}.bin"] = {"tokens": tokens, "size": sink.size, "sha256": sink.sha256}
    notes = [UINT32_NOTE] if sets[0].manifest.dtype == "uint32" else []
    return {"files": files, "tail_tokens": dict.fromkeys(splits, 0), "notes": notes}
