"""What shard sets cost: parquet to proven published sets, beside the reference engine, a peer, decoding."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib import text
from benchlib.builder_run import build_alone
from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.shard_run import Watched, run_pipeline

TEXT_MB = int(os.environ.get("STOKER_BENCH_TEXT_MB", "2048"))
FILE_MB = 256  # FineWeb has 2 GB; what each file costs once would count for too much in small ones
HF_MB = 32  # the reference takes some 9 MB/s on two cores
PEER_MB = 200
GROUP_MB = int(os.environ.get("STOKER_BENCH_GROUP_MB", "500"))
WORDS_MB = int(os.environ.get("STOKER_BENCH_WORDS_MB", "400"))
PEER_PYTHON = os.environ.get("STOKER_BENCH_DATATROVE", sys.executable)  # one that has datatrove

LEAST_RATE, LEAST_OF_REFERENCE, LEAST_OF_PEER = 240e6, 25, 20
LEAST_OF_DECODING = 0.2  # the same rate, on machines where decoding alone does 1.2 GB/s and on slower ones
MOST_START_S = 1.0
# What a builder may hold; words that never come again fill the engine's cache, which is dropped at some size
MOST_BYTES = {"pipeline": 200 << 20, "one row group": 200 << 20, "random words": 280 << 20}
# CPU seconds, against those of an older checkout in turns; without one, against its share of decoding alone
OLDER = os.environ.get("STOKER_BENCH_OLDER", "")
MOST_OF_OLDER, OLDER_OF_DECODING = 1.03, 3.7  # the share that commit d1dffc6 had, with 2 GB of text

_TRAIN = """\
import json, sys
from stoker.kit.workers.child import Report
from stoker.shards.tokenize.tokenizer import train_tokenizer
from stoker.corpus.readers.parquet import ParquetRows
def texts(left=24_000_000):
    for batch in ParquetRows(__import__("pathlib").Path(sys.argv[1]), "text").batches():
        yield list(batch.texts)
        left -= sum(map(len, batch.utf8))
        if left < 0:
            return
sys.stdout.buffer.write(train_tokenizer(texts(), 32000))
"""
_DECODE = """\
import sys, pyarrow as pa, pyarrow.parquet as pq
pa.set_cpu_count(1); pa.set_io_thread_count(1); pa.set_memory_pool(pa.system_memory_pool())
for path in sys.argv[1:]:
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(350, [group], ["text"], use_threads=False):
            pass
"""
_OLDER = """\
import sys
from pathlib import Path
from benchlib.shard_run import run_pipeline
found = run_pipeline(*map(Path, sys.argv[1:]), "auto", "fastokens")
print(found.cpu_s / found.tokens * 1e6, found.peak_bytes)
"""


class ShardScenario(Scenario):
    """Parquet to published sets by two builders, beside decoding alone (the scale), HF and datatrove.

    2 GB of text, STOKER_BENCH_TEXT_MB for another number; STOKER_BENCH_DATATROVE names a Python that has
    datatrove where this one has not. STOKER_BENCH_OLDER names a checkout whose CPU time is the measure; it
    runs in turns with this one.
    """

    name = "shard"
    repeats = 3

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}

    def prepare(self, directory: Path) -> None:
        """Make all text; it is never the same twice in a corpus."""
        self._make(directory / "corpus", max(2, TEXT_MB // FILE_MB), min(FILE_MB, TEXT_MB // 2), 1)
        self._make(directory / "reference", 2, HF_MB // 2, 10_000)
        self._make(directory / "peer", 4, PEER_MB // 4, 20_000)
        self._make(directory / "words", 1, WORDS_MB, 30_000, "write_random_words")
        self._make(directory / "group", 1, GROUP_MB, 40_000, "write_one_row_group")
        first = next((directory / "corpus").iterdir())
        trained = subprocess.run([sys.executable, "-c", _TRAIN, first], capture_output=True, check=True)
        (directory / "tokenizer.json").write_bytes(trained.stdout)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        variants: dict[str, Callable[[Path], Measures]] = {
            "decode alone": self._decode,
            "pipeline": lambda at: self._pipeline(at, "corpus", "auto", "fastokens"),
            "pipeline, HF, slice": lambda at: self._pipeline(at, "reference", "tokenizers", "tokenizers"),
            "pipeline, 200 MB": lambda at: self._pipeline(at, "peer", "auto", "fastokens"),
            "one worker's start": self._start,
            "random words": lambda at: self._alone(at, "words"),
            "one row group": lambda at: self._alone(at, "group"),
        }
        if OLDER:
            variants["pipeline, older"] = self._older
        if subprocess.run(
            [PEER_PYTHON, "-c", "import datatrove"], capture_output=True, check=False
        ).returncode:
            print(f"bench: NOT MEASURED: datatrove is not installed for {PEER_PYTHON}", file=sys.stderr)
        else:
            variants["datatrove, 200 MB"] = self._peer
        return variants

    def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
        """The promises: rate, ratios, start, memory."""
        rate = series["pipeline"]["rate_bytes_per_s"].median
        yield from _least("pipeline: MB/s", rate / 1e6, LEAST_RATE / 1e6)
        decoding = series["decode alone"]["rate_bytes_per_s"].median
        yield from _least("pipeline: share of decoding alone", rate / decoding, LEAST_OF_DECODING)
        reference = series["pipeline, HF, slice"]["rate_bytes_per_s"].median
        yield from _least("pipeline: times the reference", rate / reference, LEAST_OF_REFERENCE)
        if "datatrove, 200 MB" in series:
            whole = series["pipeline, 200 MB"]["whole_s"].median
            peer = series["datatrove, 200 MB"]["whole_s"].median
            yield from _least("pipeline, 200 MB: times datatrove", peer / whole, LEAST_OF_PEER)
        start = series["one worker's start"]["first_commit_s"].median
        yield from _least("one worker's start: 1 s to", 1 / start, 1 / MOST_START_S)
        start = series["pipeline"]["first_commit_s"].median
        yield from _least("the whole loop's start: 1 s to", 1 / start, 1 / MOST_START_S)

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        """What a builder holds, and its CPU time."""
        for name, most in MOST_BYTES.items():
            held = series[name]["builder_rss_bytes"].median
            yield Bar(f"{name}: MiB that a builder held", held / 2**20, most / 2**20)
        if older := series.get("pipeline, older"):
            name = "cpu_s_a_M_tokens"
            pairs = zip(series["pipeline"][name].values, older[name].values, strict=True)
            ratio = statistics.median(now / before for now, before in pairs)
            yield Bar(f"pipeline: CPU, times {OLDER}", ratio, MOST_OF_OLDER)
        elif (share := series["pipeline"]["cpu_s"].ratio) is not None:
            ratio = share / OLDER_OF_DECODING
            yield Bar("pipeline: CPU of decoding alone, times d1dffc6's", ratio, MOST_OF_OLDER)

    def _make(self, folder: Path, files: int, megabytes: int, seed: int, how: str = "write_prose") -> None:
        """The files of a folder, two at a time."""
        folder.mkdir()
        call = f"import sys; from benchlib.text import {how} as write; from pathlib import Path\n"
        call += "for seed in sys.argv[3:]:\n    print(write(Path(sys.argv[1]) / f'{int(seed):05d}.parquet',"
        call += " int(sys.argv[2]) * 10**6, int(seed)))"
        seeds = [str(seed + number) for number in range(files)]
        command = [sys.executable, "-c", call, str(folder), str(megabytes)]
        makers = [
            subprocess.Popen([*command, *part], stdout=subprocess.PIPE, cwd=Path(text.__file__).parent.parent)
            for part in (seeds[::2], seeds[1::2])
            if part
        ]
        made = [int(line) for maker in makers for line in maker.communicate()[0].split()]
        if any(maker.returncode for maker in makers) or len(made) != files:
            raise RuntimeError(f"the text of {folder.name} could not be made")
        self._bytes[folder.name] = sum(made)

    def _decode(self, directory: Path) -> Measures:
        files = sorted((directory / "corpus").iterdir())
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        halves = [files[::2], files[1::2]]
        running = [subprocess.Popen([sys.executable, "-c", _DECODE, *half]) for half in halves if half]
        for process in running:
            if process.wait():
                raise RuntimeError("decoding failed")
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"rate_bytes_per_s": self._bytes["corpus"] / seconds, "cpu_s": cpu, "whole_s": seconds}

    def _pipeline(self, directory: Path, source: str, engine: str, expected: str) -> Measures:
        home = directory / "run"
        try:
            tokenizer = directory / "tokenizer.json"
            watched = run_pipeline(home, directory / source, tokenizer, engine, expected)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return self._measures(watched, self._bytes[source])

    def _older(self, directory: Path) -> Measures:
        """The pipeline of another checkout, with its own bench and this one's libraries."""
        home = directory / "run"
        path = os.pathsep.join(f"{OLDER}/{part}" for part in ("scripts", "lib", "daemons"))
        command = [sys.executable, "-c", _OLDER, home, directory / "corpus", directory / "tokenizer.json"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{OLDER} failed: {error.stderr[-2000:]}") from error
        finally:
            shutil.rmtree(home, ignore_errors=True)
        cpu_s, held = map(float, done.stdout.split())
        return {"cpu_s_a_M_tokens": cpu_s, "builder_rss_bytes": held}

    @staticmethod
    def _measures(watched: Watched, text_bytes: int) -> Measures:
        measures = {
            "rate_bytes_per_s": text_bytes / watched.building_s,
            "tokens_per_s": watched.tokens / watched.building_s,
            "cpu_s_a_M_tokens": watched.cpu_s / watched.tokens * 1e6,
            "cpu_s": watched.cpu_s,
            "builder_rss_bytes": float(watched.peak_bytes),
            "first_commit_s": watched.first_commit_s,
            "whole_s": watched.whole_s,
        }
        for number, (seconds, held) in enumerate(watched.quarters(), 1):
            measures[f"q{number}_bytes_per_s"] = text_bytes / 4 / max(seconds, 1e-3)
            measures[f"q{number}_rss_bytes"] = float(held)
        return measures

    def _start(self, directory: Path) -> Measures:
        home = directory / "run"
        try:
            first = min((directory / "corpus").iterdir())
            built = build_alone(home, first, directory / "tokenizer.json", to_first_commit=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return {"first_commit_s": built.first_commit_s}

    def _alone(self, directory: Path, source: str) -> Measures:
        home = directory / "run"
        try:
            (file,) = (directory / source).iterdir()
            built = build_alone(home, file, directory / "tokenizer.json")
        finally:
            shutil.rmtree(home, ignore_errors=True)
        quarters = [built.held[len(built.held) * n // 4] for n in range(4)]
        return {
            "rate_bytes_per_s": self._bytes[source] / built.whole_s,
            "cpu_s_a_M_tokens": built.cpu_s / built.tokens * 1e6,
            "builder_rss_bytes": float(built.peak_bytes),
            **{f"q{n}_rss_bytes": float(held) for n, held in enumerate(quarters, 1)},
        }

    def _peer(self, directory: Path) -> Measures:
        home = directory / "run"
        job = Path(text.__file__).parent / "datatrove_job.py"
        began = time.monotonic()
        try:
            subprocess.run(
                [PEER_PYTHON, job, directory / "peer", directory / "tokenizer.json", home],
                check=True,
                capture_output=True,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"datatrove failed: {error.stderr.decode()[-2000:]}") from error
        finally:
            shutil.rmtree(home, ignore_errors=True)
        whole = time.monotonic() - began
        return {"rate_bytes_per_s": self._bytes["peer"] / whole, "whole_s": whole}


def _least(what: str, found: float, least: float) -> Iterator[str]:
    if found < least:
        yield f"{what}: {found:.3g} < {least:.3g}"
