"""Worker: copies the run's held-out windows, once, from the val streams of shard sets.

Task: {"shards_root", "sets": [[key, manifest sha256], ...], "seq_len", "vocab_size", "tokens", "target"};
`tokens` is the number to evaluate on. Result: {"sha256", "windows", "dtype", "tokens"}; `tokens` is windows x
seq_len. The file holds windows of seq_len + 1 tokens without gaps, little-endian, in the sets' dtype.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from stoker.kit.workers.child import Report, run_worker
from stoker.plan.windows import WindowReader
from stoker.store.files import write_atomic


def spread(available: int, wanted: int) -> list[int]:
    """Returns `wanted` of `available` windows, evenly spread and always the same; all if fewer exist."""
    count = min(available, wanted)
    return [index * available // count for index in range(count)]


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Writes the windows durably to the task's target; val data shorter than a window gives 0 windows."""
    report("phase", phase="heldout")
    seq_len = int(task["seq_len"])
    reader = WindowReader(
        [(key, digest) for key, digest in task["sets"]],
        Path(task["shards_root"]),
        seq_len=seq_len,
        vocab_size=int(task["vocab_size"]),
        stream="val",
    )
    chosen = spread(reader.windows, max(1, int(task["tokens"]) // seq_len))
    data = reader.read(np.asarray(chosen, dtype=np.int64)).astype(reader.dtype).tobytes()
    write_atomic(Path(task["target"]), data)
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "windows": len(chosen),
        "dtype": reader.dtype.name,
        "tokens": len(chosen) * seq_len,
    }


if __name__ == "__main__":
    run_worker(main)
