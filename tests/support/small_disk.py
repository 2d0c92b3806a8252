"""A corpus three times its hot disk: text that costs little to make, and an independent recount of a run.

Most of the documents are held out, so the shard sets are large and the training on them is short.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.pipelines import DataPipeline, make_pipeline

MIB = 2**20
DOCUMENT = 200  # letters a document
SET_BYTES_A_LETTER = 2.11  # a token a letter, and what each document adds in end-of-text, .idx and .row


@dataclass(frozen=True)
class Sizes:
    """One size of the whole thing; bytes. The sets together are `ratio` times the hot disk."""

    hot: int
    sets: int
    ratio: float = 3.0
    checkpoint_steps: int = 50

    @property
    def set_bytes(self) -> int:
        return int(self.hot * self.ratio / self.sets)

    @property
    def steps(self) -> int:
        """About how many steps the whole run takes."""
        return int(EPOCHS * self.sets * self.set_bytes / SET_BYTES_A_LETTER * TRAINED / (SEQ_LEN * BATCH))


EPOCHS, SEQ_LEN, BATCH = 2, 64, 32
TRAINED = 0.05  # the share of the documents that is trained on
LEAST = Sizes(10 * MIB, 4, ratio=1.0, checkpoint_steps=32)  # three sets and a file fit, four sets never do
QUICK = Sizes(16 * MIB, 12, checkpoint_steps=32)
FULL = Sizes(64 * MIB, 48, checkpoint_steps=32)


def write_letters(path: Path, letters: int, seed: int) -> None:
    """A parquet file of random letters, with as many spaces as words need."""
    alphabet = np.frombuffer(b"etaoin shrdlu", dtype=np.uint8)
    text = alphabet[np.random.default_rng(seed).integers(0, len(alphabet), letters)]
    documents = letters // DOCUMENT
    ends = np.arange(0, (documents + 1) * DOCUMENT, DOCUMENT, dtype=np.int32)
    column = pa.StringArray.from_buffers(
        documents, pa.py_buffer(ends.tobytes()), pa.py_buffer(text.tobytes())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": column})
    pq.write_table(table, path, row_group_size=1000, compression="none", write_page_checksum=True)


def make_small_disk(home: Path, sizes: Sizes, **changes: Any) -> DataPipeline:
    """The pipeline file and its corpus; `home/hot` is the caller's to mount."""
    settings: dict[str, Any] = {
        "warm": str(home / "warm"),
        "dataset__filters": {"min_chars": 20},
        "stage": {"settle": "0s", "free_floor": "1MiB", "queue_files": 2, "queue_bytes": "4MiB"},
        "tokenizer__train": {"vocab_size": 257, "train_bytes": "100KB"},
        "shard": {
            "val_ratio": 1 - TRAINED,
            "shard_tokens": 100_000_000,
            "workers": 1,
            "release": "after_sync",
            "commit": {"every": "0.2s", "bytes": "1MiB"},
        },
        "evict": {"target_free": f"{sizes.hot // 5}B", "keep_hot_sets": 1},
        "plan": {"segment_tokens": 1000, "epochs": EPOCHS, "hold": "1h"},
        "train": {
            "steps": 1_000_000,
            "seq_len": SEQ_LEN,
            "global_batch": BATCH,
            "deterministic": True,
            "model": {"layers": 1, "width": 16, "heads": 1, "kv_heads": 1, "ffn_width": 16},
            "start_when": {"tokens": "1000", "shard_sets": 1},
            "evaluate": {"every_steps": None, "tokens": 512},
            "schedule": {"warmup_steps": 10},
            "checkpoint": {
                "every": None,
                "every_steps": sizes.checkpoint_steps,
                "keep_last": 1,
                "milestones": [sizes.checkpoint_steps * 2, sizes.checkpoint_steps * 7],
                "mirror": True,
            },
        },
        "supervise": {"stop_time": "30s", "backoff": {"first": "0.1s", "most": "0.5s"}},
        "metrics__ports": {"download": 0, "shard": 0, "train": 0},
    }
    data = make_pipeline(home, "small", **{**settings, **changes})
    letters = int(sizes.set_bytes / SET_BYTES_A_LETTER)
    for number in range(sizes.sets):
        write_letters(data.source / f"{number:04d}.parquet", letters, number)
    return data


# The recount: plain JSON and the files of the warm disk, none of the project's code.


def recount(data: DataPipeline, run: str = "main") -> dict[str, Any]:
    """Check that every window was applied once an epoch, by the training log alone; the figures it found.

    Raises AssertionError naming what is wrong. The global batch is taken to be constant, no window skipped.
    """
    root = data.pipeline.state / "runs" / run
    batch = data.pipeline.train.global_batch
    segments = [line for line in lines_of(root / "plan.jsonl") if "sets" in line]
    train_tokens = tokens_on_warm(data)
    starts: dict[int, int] = {}
    windows = tail = 0
    named: dict[int, list[str]] = {}
    for segment in segments:
        tokens = sum(train_tokens[key] for key, _ in segment["sets"])
        assert segment["windows"] == (tokens - 1) // segment["seq_len"], segment
        assert segment["tail_tokens"] == tokens - segment["windows"] * segment["seq_len"], segment
        starts[segment["n"]] = windows
        windows += segment["windows"]
        tail += segment["tail_tokens"]
        named.setdefault(segment["epoch"], []).extend(key for key, _ in segment["sets"])
    for epoch, keys in named.items():
        assert sorted(keys) == sorted(train_tokens), f"epoch {epoch} does not name each set once"
    rows = committed(row for row in lines_of(root / "log" / "metrics.jsonl") if "loss" in row)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)), "a step is not in the training log"
    for row in rows:
        entry, offset = row["position"]
        assert starts.get(entry, windows) + offset == row["step"] * batch, row
    assert 0 <= windows - len(rows) * batch < batch, f"{windows} windows, {len(rows)} batches of {batch}"
    return {"steps": len(rows), "windows": windows, "epochs": sorted(named), "tail_tokens": tail}


def committed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that count, by step: those of the newest timeline, each there once.

    Right for a run that came to its end: every rollback was trained over again up to it.
    """
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        before = found.get(row["step"])
        assert before is None or before["timeline"] < row["timeline"], f"twice in one timeline: {row}"
        found[row["step"]] = row
    return [found[step] for step in sorted(found)]


def tokens_on_warm(data: DataPipeline) -> dict[str, int]:
    """Train tokens of every set by key, counted from the sizes of the files on warm."""
    found = {}
    for folder in (data.pipeline.warm / "shards" / data.pipeline.dataset.name).iterdir():  # type: ignore[operator]
        key = json.loads((folder / "manifest.json").read_text())["key"]
        found[key] = sum(file.stat().st_size for file in folder.glob("train-*.bin")) // 2
    return found


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file."""
    for line in path.read_bytes().splitlines():
        yield json.loads(line)


def weights(checkpoint: Path) -> dict[str, str]:
    """The hashes of a checkpoint's tensors."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(checkpoint.glob("*.safetensors"))
    }


def leftovers(data: DataPipeline) -> list[str]:
    """What an interrupted activity left on hot, warm or among the checkpoints, below places for it."""
    pipeline = data.pipeline
    places = [pipeline.hot, pipeline.state / "runs", *([pipeline.warm] if pipeline.warm else [])]
    found = []
    for place in places:
        for path in place.rglob("*"):
            beside = path.parent.name in (".trash", ".building", "parquet")
            if beside or path.name.startswith(".tmp"):
                found.append(str(path))
    return sorted(found)
