"""The unigram loss, of a model with only token frequencies: a trained model must have a lower loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.plan.log import read_plan
from stoker.plan.windows import DTYPES
from stoker.store.layout import RunLayout
from stoker.store.record import read_record

CHUNK_TOKENS = 1 << 22


def unigram_loss(run_dir: Path, shards_root: Path | None = None) -> float:
    """Returns the cross-entropy (nats per token) of held-out targets under the training token frequencies.

    Counts the tokens of each set in the plan once, and adds one to each count. The targets are those of an
    evaluation: all tokens of each held-out window but the first.
    """
    layout = RunLayout(run_dir)
    launch = read_record(layout.launch)
    root = shards_root or Path(launch["shards_root"])
    dtype = DTYPES[launch["dtype"]]
    counts = np.ones(launch["vocab_size"], dtype=np.int64)
    for key in sorted({key for segment in read_plan(layout.plan).segments for key, _ in segment.sets}):
        for file in sorted((root / key[:16]).glob("train-*.bin")):
            counts += _counts(file, dtype, len(counts))
    seq_len = launch["heldout"].get("seq_len", launch["seq_len"])
    windows = np.fromfile(layout.heldout, dtype=dtype).reshape(-1, seq_len + 1)
    nats = np.log(counts.sum()) - np.log(counts)
    return float(nats[windows[:, 1:]].mean())


def _counts(file: Path, dtype: np.dtype[Any], vocab_size: int) -> npt.NDArray[np.int64]:
    """Returns how often each id occurs in a token file, which is read in pieces."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    with file.open("rb") as stream:
        while (tokens := np.fromfile(stream, dtype=dtype, count=CHUNK_TOKENS)).size:
            counts += np.bincount(tokens, minlength=vocab_size)
    return counts
