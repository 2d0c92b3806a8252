"""How fast batches come: Stoker's reader beside nanoGPT's way over the same tokens (the scale)."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from benchlib.runner import Measures, Scenario, Series
from stoker.plan.log import PlanWriter, Segment, segment_key
from stoker.plan.positions import START
from stoker.store.files import canonical_json
from stoker.training.data.batches import Batches

SETS, SET_TOKENS = 4, 32_000_000
VOCAB, SEQ_LEN, BATCH = 50_257, 2048, 32
WARM, COLD = 1000, 50  # batches; the cold ones few, for reading ahead must not pay by the file being small
LEAST_OF_NANOGPT = 3.0


class LoadScenario(Scenario):
    """Batches of 32 x 2049 tokens as int64 tensors: from the page cache, and from files that are not in it.

    It takes 0.5 GB of the disk of TMPDIR. Where files cannot be put out of memory, only the first.
    """

    name = "load"

    def prepare(self, directory: Path) -> None:
        tokens = [np.random.default_rng(n).integers(0, VOCAB, SET_TOKENS, "<u2") for n in range(SETS)]
        (directory / "train.bin").write_bytes(b"".join(part.tobytes() for part in tokens))
        pairs = tuple(_write_set(directory / "shards", part, n) for n, part in enumerate(tokens))
        windows = (SETS * SET_TOKENS - 1) // SEQ_LEN
        tail = SETS * SET_TOKENS - windows * SEQ_LEN
        writer = PlanWriter(directory / "plan.jsonl")
        writer.append(Segment(0, 0, pairs, SEQ_LEN, windows, tail, segment_key(1, 0)))
        _forget(directory)
        before = _blocks_read()
        _take(_nanogpt(directory), 1)
        self.is_from_disk = _blocks_read() > before

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "nanogpt": lambda directory: self._measure(_nanogpt, directory),
            "stoker": lambda directory: self._measure(_stoker, directory),
        }

    def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
        for measure, each in series["stoker"].items():
            if each.ratio is None or each.ratio < LEAST_OF_NANOGPT:
                yield f"stoker: {measure} {each.ratio} x nanogpt, at least {LEAST_OF_NANOGPT}"

    def _measure(self, begin: Callable[[Path], Iterator[object]], directory: Path) -> Measures:
        measures: dict[str, float] = {}
        if self.is_from_disk:
            _forget(directory)
            measures["cold_per_s"] = _take(begin(directory), COLD)
        for file in directory.rglob("*.bin"):
            file.read_bytes()
        return {"warm_per_s": _take(begin(directory), WARM), **measures}


def _take(batches: Iterator[object], count: int) -> float:
    """Returns the batches a second."""
    began = time.monotonic()
    for _ in range(count):
        next(batches)
    return count / (time.monotonic() - began)


def _nanogpt(directory: Path) -> Iterator[object]:
    """As get_batch of nanoGPT's train.py, on a CPU."""
    while True:
        data = np.memmap(directory / "train.bin", dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - SEQ_LEN, (BATCH,)).tolist()
        x = torch.stack([torch.from_numpy(data[i : i + SEQ_LEN].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in starts])
        yield x, y


def _stoker(directory: Path) -> Iterator[object]:
    plan, shards = directory / "plan.jsonl", directory / "shards"
    batches = Batches(plan, shards, position=START, size=BATCH, vocab_size=VOCAB)
    while (batch := batches.next()) is not None:
        (windows,) = map(torch.from_numpy, batch.groups)
        yield windows[:, :-1], windows[:, 1:]


def _write_set(root: Path, tokens: np.ndarray, number: int) -> tuple[str, str]:
    key = hashlib.sha256(f"set {number}".encode()).hexdigest()
    directory = root / key[:16]
    directory.mkdir(parents=True)
    (directory / "train-00000.bin").write_bytes(tokens.tobytes())
    files = {"train-00000.bin": {"tokens": len(tokens)}}
    manifest = canonical_json({"v": 1, "key": key, "dtype": "uint16", "files": files})
    (directory / "manifest.json").write_bytes(manifest)
    return key, hashlib.sha256(manifest).hexdigest()


def _forget(directory: Path) -> None:
    """Has the kernel put the files out of memory, which it does where nothing maps them."""
    gc.collect()
    for file in directory.rglob("*.bin"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _blocks_read() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
