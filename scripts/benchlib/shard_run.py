"""Runs the real loop over parquet and watches it from outside: what it published when, and what it held."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.kit.process import children_tree

LONGEST_S = 1800.0
EVERY_S, FIRST_EVERY_S = 0.1, 0.03  # looking costs time that is being measured
BUILDERS_EVERY_S = 1.0  # a look at every process there is
SCRIPTS = Path(sys.executable).parent

PIPELINE = """\
name: bench
state: {home}/state
hot: {home}/hot
dataset: {{name: prose, source: {{kind: folder, path: "{source}"}}, filters: {{min_chars: 80}}}}
stage: {{settle: 0s, free_floor: 1MiB}}
tokenizer: {{file: "{tokenizer}", engine: {engine}}}
shard: {{workers: 2, release: never}}
train: {{steps: 10, model: demo, seq_len: 256, global_batch: 16, micro_batch: 16}}
metrics: {{ports: {{download: 0, shard: 0, train: 0}}}}
"""


@dataclass
class Watched:
    """What was seen of a run: seconds since its launch, bytes; `published` has a time a set."""

    launched: float = field(default_factory=time.monotonic)
    first_commit_s: float = 0.0
    published: list[float] = field(default_factory=list)
    builders: list[tuple[float, int]] = field(
        default_factory=list
    )  # the largest one's resident bytes, in time
    peak_bytes: int = 0
    cpu_s: float = 0.0
    whole_s: float = 0.0
    tokens: int = 0

    @property
    def building_s(self) -> float:
        """From the first commit to the last set."""
        return max(self.published[-1] - self.first_commit_s, 1e-9)

    def quarters(self) -> Iterator[tuple[float, int]]:
        """For each quarter of the sets: how long it took, and the most a builder held meanwhile."""
        count, began = len(self.published), self.first_commit_s
        for quarter in range(1, 5):
            ended = self.published[max(1, round(count * quarter / 4)) - 1]
            held = [size for at, size in self.builders if began <= at <= ended]
            yield ended - began, max(held, default=0)
            began = ended


def run_pipeline(home: Path, source: Path, tokenizer: Path, engine: str, expected: str) -> Watched:
    """Receipts by the real watchdog first, unmeasured; then the loop with --once, measured.

    RuntimeError where it fails, or where a set was built by another engine than the one expected.
    """
    home.mkdir()
    file = home / "bench.yaml"
    file.write_text(PIPELINE.format(home=home, source=source, tokenizer=tokenizer, engine=engine))
    pipeline = load_pipeline(file)
    _finish(_launch("stoker-download-watchdog", file), file)
    watched = Watched()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = _launch("stoker-stage-shard", file)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, pipeline, watched, done))
    watcher.start()
    try:
        _finish(process, file)
        watched.whole_s = time.monotonic() - watched.launched
    finally:
        done.set()
        watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    watched.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    _look_at_sets(pipeline, watched, expected)
    return watched


def _launch(daemon: str, file: Path) -> subprocess.Popen[bytes]:
    with (file.parent / f"{daemon}.err").open("wb") as errors:
        return subprocess.Popen([SCRIPTS / daemon, file, "--once"], stdout=errors, stderr=errors)


def _finish(process: subprocess.Popen[bytes], file: Path) -> None:
    try:
        code = process.wait(LONGEST_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    if code:
        said = "".join(each.read_text(errors="replace") for each in sorted(file.parent.glob("*.err")))
        raise RuntimeError(f"{process.args} ended with {code}; it said:\n{said[-3000:]}")


def _watch(pid: int, pipeline: Pipeline, watched: Watched, done: threading.Event) -> None:
    building, sets = pipeline.hot_layout.building, pipeline.hot_layout.shards(pipeline.dataset.name)
    builders: list[int] = []
    looked = -BUILDERS_EVERY_S
    while not done.wait(EVERY_S if watched.first_commit_s else FIRST_EVERY_S):
        now = time.monotonic() - watched.launched
        if not watched.first_commit_s and any(building.glob("*/progress.json")):
            watched.first_commit_s = now
        there = len([each for each in sets.glob("*") if not each.name.startswith(".")])
        watched.published += [now] * (there - len(watched.published))
        if now - looked >= BUILDERS_EVERY_S:
            looked, builders = now, [child.pid for child in children_tree(pid) if _builds(child.pid)]
        sizes = [_memory(builder) for builder in builders]
        watched.builders.append((now, max((size for size, _ in sizes), default=0)))
        watched.peak_bytes = max([watched.peak_bytes, *(peak for _, peak in sizes)])


def _builds(pid: int) -> bool:
    with suppress(OSError):
        return b"build_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a builder, now and at most; 0 for one that is gone."""
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        now, most = (int(status.split(f"{name}:")[1].split()[0]) for name in ("VmRSS", "VmHWM"))
        return now * 1024, most * 1024
    return 0, 0


def _look_at_sets(pipeline: Pipeline, watched: Watched, expected: str) -> None:
    now = watched.whole_s
    folders = sorted(pipeline.hot_layout.shards(pipeline.dataset.name).glob("*/manifest.json"))
    watched.published += [now] * (len(folders) - len(watched.published))
    for manifest in folders:
        watched.tokens += json.loads(manifest.read_text())["books"]["tokens"]
        engine = json.loads((manifest.parent / "build.json").read_text())["engine"]["name"]
        if engine != expected:
            raise RuntimeError(f"{manifest.parent.name} was built by {engine}, not by {expected}")
    if not folders:
        raise RuntimeError("nothing was published")
    watched.first_commit_s = watched.first_commit_s or watched.published[0]


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))
