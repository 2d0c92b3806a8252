"""What the plan costs: to open and to hold, to grow by an entry, and its order of windows."""

from __future__ import annotations

import hashlib
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchlib.runner import Measures, Scenario
from stoker.plan.log import PlanWriter, Segment, read_plan, segment_key
from stoker.plan.permutation import permute
from stoker.store.files import canonical_json
from stoker.store.log import GENESIS

SETS_AN_ENTRY = 100
WINDOWS = 1 << 20
APPENDS = 20


class PlanScenario(Scenario):
    """Opening and holding a plan of 5,000 (the scale) and 50,000 shard sets, and appending to it."""

    name = "plan"
    limits: ClassVar = {"open_s": 1.0, "bytes_a_set": 72.0}

    def prepare(self, directory: Path) -> None:
        for count in (5_000, 50_000):
            _write_plan(directory / f"{count}.jsonl", count)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            f"{count} sets": lambda directory, count=count: _open(directory, count)
            for count in (5_000, 50_000)
        }


class PositionsScenario(Scenario):
    """A million windows' places in an entry's order: the easiest size (the scale), a common, the worst."""

    name = "positions"
    limits: ClassVar = {"million_windows_s": 0.2}  # 5 million a second on a core

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        sizes = {"4^12 windows": 4**12, "10 million windows": 10**7, "4^12 + 1 windows": 4**12 + 1}
        return {name: lambda _, size=size: _permute(size) for name, size in sizes.items()}


def _open(directory: Path, count: int) -> Measures:
    path = directory / f"{count}.jsonl"
    began = time.process_time()
    read_plan(path)
    opened_s = time.process_time() - began
    tracemalloc.start()
    plan = read_plan(path)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    copy = directory / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    writer = PlanWriter(copy)
    began = time.monotonic()
    for n in range(len(plan.entries), len(plan.entries) + APPENDS):
        writer.append(_segment(n))
    return {
        "open_s": opened_s,
        "bytes_a_set": held / count,
        "append_s": (time.monotonic() - began) / APPENDS,
    }


def _write_plan(path: Path, count: int) -> None:
    head = GENESIS
    with path.open("wb") as file:  # by hand: durable appends would take minutes
        for n in range(count // SETS_AN_ENTRY):
            line = canonical_json({**_segment(n).body(), "prev": head})
            head = hashlib.sha256(line).hexdigest()
            file.write(line + b"\n")


def _segment(n: int) -> Segment:
    names = (hashlib.sha256(f"{n}/{i}".encode()).hexdigest() for i in range(SETS_AN_ENTRY))
    return Segment(n, 0, [(name, name) for name in names], 1024, 10**6, 5, segment_key(1, n), run_id="bench")


def _permute(size: int) -> Measures:
    offsets = np.arange(WINDOWS)
    began = time.process_time()
    permute(segment_key(1, 0), size, offsets)
    return {"million_windows_s": (time.process_time() - began) / WINDOWS * 10**6}
