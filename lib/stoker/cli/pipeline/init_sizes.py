"""What a new pipeline file says of the machine that it is written on."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from stoker.config.places import existing
from stoker.config.units import write_count, write_size
from stoker.observe.machine import MemoryWatch, PressureGauge

MIB, GIB = 2**20, 2**30
TOKEN_BYTES = 2  # of a vocabulary of at most 65,536
LARGE_GPU_BYTES = 20 * GIB
BUILDER_BYTES = 2 * GIB  # twice a builder's limit: trainer and page cache want some, too
TOKENS = {"tiny": "15M", "demo": "50M", "124m": "2.2B", "474m": "9.5B"}  # of a run: 20 for each parameter


@dataclass(frozen=True)
class Machine:
    """What is measured of a machine; `gpu_bytes` is 0 without a GPU."""

    cores: int
    memory_bytes: int
    gpu_bytes: int
    hot_bytes: int  # that are free on the disk of hot


def measured(hot: Path) -> Machine:
    """Measures this machine, and the disk that holds `hot` or will hold it."""
    free = shutil.disk_usage(existing(hot)).free
    return Machine(int(PressureGauge().cpus) or 1, MemoryWatch().sample().headroom_bytes, gpu_bytes(), free)


def gpu_bytes() -> int:
    """Returns the memory of the first GPU that may be used; 0 without any."""
    import pynvml

    if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        with contextlib.suppress(pynvml.NVMLError):  # no driver, or no card
            pynvml.nvmlInit()
            return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
    return 0


def model_for(gpu: int) -> str:
    """Returns the name of the largest model that trains in days or weeks with so many bytes of a GPU."""
    return "474m" if gpu >= LARGE_GPU_BYTES else "124m" if gpu else "demo"


def sized(machine: Machine, tokens: int, *, has_warm: bool) -> dict[str, str | int]:
    """Returns the values, as the file has them, that follow from the machine and from the run's tokens."""
    floor = min(20 * GIB, machine.hot_bytes // 10)
    room = machine.hot_bytes - floor
    segment = min(10**9, max(10**6, room // TOKEN_BYTES // 3))
    start = min(10**8, max(10, tokens // 10), segment // 2)
    ahead = max(64 * MIB, min(20 * GIB, room // 10))
    cores = machine.cores - 2 if machine.gpu_bytes else machine.cores // 2
    # Without warm all sets stay on hot. The held-out share is beside the tokens of the run.
    most = tokens + tokens // 50 if has_warm else min(tokens + tokens // 50, room // TOKEN_BYTES * 4 // 5)
    return {
        "free_floor": write_size(floor // MIB * MIB),
        "queue_bytes": write_size(ahead // MIB * MIB),
        "workers": max(1, min(cores, machine.memory_bytes // BUILDER_BYTES)),
        "segment_tokens": _count(segment),
        "start_tokens": _count(start),
        "limit": _count(max(1, most)),
        # No more than the first sets hold out, with which the run begins.
        "evaluate_tokens": min(131_072, start // 250) // 2048 * 2048,
    }


def _count(number: int) -> str:
    """Returns a count of two significant digits, not above the number."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return write_count(number // unit * unit)
