"""What a reader of the disk, as training is one, feels of a folder that is adopted: its rate, its waits."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Measures, Scenario, Series
from stoker.config.load import load_pipeline
from stoker.corpus.records.receipts import read_receipts

FILES, FILE_BYTES, OWN_BYTES = 8, 512 << 20, 1 << 30
READ_BYTES, READ_S, START_S = 1 << 20, 8.0, 1.0
AT_ONCE = 4
LONGEST_S = 300.0
KEEPS = 0.6  # of its rate

ALONE, ADOPTION, PLAIN = "the reader alone", "beside the adoption", "beside plain hashers"
HASHER = """
import sys
from pathlib import Path
from stoker.store.direct import hash_file
while True:
    hash_file(Path(sys.argv[1]))
"""
PIPELINE = f"""\
name: bench
state: state
hot: hot
dataset: {{name: prose, source: {{kind: folder, path: source}}}}
tokenizer: {{file: tokenizer.json}}
stage: {{settle: 0s}}
download: {{files_at_once: {AT_ONCE}}}
train: {{steps: 10, model: demo, seq_len: 256, global_batch: 16, micro_batch: 16}}
metrics: {{ports: {{download: 0, shard: 0, train: 0}}}}
"""


class Adopt(Scenario):
    """A reader past the page cache: alone (the scale), beside a folder's adoption, beside plain hashing."""

    name = "adopt"
    repeats = 2

    def prepare(self, directory: Path) -> None:
        """Files for both; their content is nothing to a disk."""
        (directory / "source").mkdir()
        for number in range(FILES):
            _write(directory / "source" / f"{number}.parquet", FILE_BYTES)
        _write(directory / "own", OWN_BYTES)
        (directory / "bench.yaml").write_text(PIPELINE)
        (directory / "tokenizer.json").write_text("{}\n")  # not read here
        os.sync()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {ALONE: self._alone, ADOPTION: self._adoption, PLAIN: self._plain}

    def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
        """Training comes first; and yet all is adopted in the end, which the run itself waits for."""
        ratio = series[ADOPTION]["rate_bytes_per_s"].ratio
        if ratio is None or ratio < KEEPS:
            yield f"{ADOPTION}: the reader keeps {ratio or 0:.2f} of its rate, less than {KEEPS}"

    def _alone(self, directory: Path) -> Measures:
        return _read(directory / "own")

    def _adoption(self, directory: Path) -> Measures:
        shutil.rmtree(directory / "state", ignore_errors=True)
        layout = load_pipeline(directory / "bench.yaml").layout
        began = time.monotonic()
        daemon = subprocess.Popen(
            [str(Path(sys.executable).parent / "stoker-download-watchdog"), str(directory / "bench.yaml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(START_S)
            measures = _read(directory / "own")
            while len(read_receipts(layout, "prose")) < FILES:
                if daemon.poll() is not None or time.monotonic() > began + LONGEST_S:
                    raise RuntimeError("the watchdog does not adopt the folder")
                time.sleep(0.05)
            return {**measures, "adopted_s": time.monotonic() - began}
        finally:
            daemon.terminate()
            daemon.wait(LONGEST_S)

    def _plain(self, directory: Path) -> Measures:
        with contextlib.ExitStack() as stack:
            for number in range(AT_ONCE):
                file = directory / "source" / f"{number}.parquet"
                hasher = stack.enter_context(subprocess.Popen([sys.executable, "-c", HASHER, str(file)]))
                stack.callback(hasher.kill)
            time.sleep(START_S)
            return _read(directory / "own")


def _read(file: Path) -> Measures:
    """Read pieces from anywhere in a file, one after the other, for some seconds."""
    rng, waits = random.Random(1), []
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, READ_BYTES) as buffer:
            end = time.monotonic() + READ_S
            while (began := time.monotonic()) < end:
                os.preadv(descriptor, [buffer], rng.randrange(OWN_BYTES // READ_BYTES) * READ_BYTES)
                waits.append(time.monotonic() - began)
    finally:
        os.close(descriptor)
    waits.sort()
    return {
        "rate_bytes_per_s": len(waits) * READ_BYTES / READ_S,
        "median_wait_s": waits[len(waits) // 2],
        "p99_wait_s": waits[len(waits) * 99 // 100],
    }


def _write(file: Path, size: int) -> None:
    block = os.urandom(READ_BYTES)
    with file.open("wb") as stream:
        for _ in range(size // READ_BYTES):
            stream.write(block)
