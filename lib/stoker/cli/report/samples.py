"""Reads a daemon's samples as columns of numbers over time."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import defaultdict
from pathlib import Path

import numpy as np

from stoker.observe.drawing import Points
from stoker.observe.pace import unix
from stoker.observe.samples import FILE_BYTES, read_samples

SHOWN = ("_rss_bytes", "_free_bytes", "gpu_memory_used_bytes", "gpu_utilization_ratio")
LAST_S = 1 << 33  # in the year 2242

Columns = dict[str, Points]


def read_columns(path: Path) -> Columns:
    """Returns each column of which something is known: Unix seconds, in order, and values.

    Lines that are torn or no rows are left out.
    """
    times: defaultdict[str, array[float]] = defaultdict(_doubles)
    values: defaultdict[str, array[float]] = defaultdict(_doubles)
    for file in (path.with_name(f"{path.name}.1"), path):
        for row in read_samples(file, FILE_BYTES):
            with contextlib.suppress(KeyError, ValueError):
                at = moment(row["time"])
                for name, text in row.items():
                    if text and name.endswith(SHOWN):
                        value = float(text)
                        if math.isfinite(value):
                            times[name].append(at)
                            values[name].append(value)
    columns = {name: (np.array(times[name]), np.array(values[name])) for name in values}
    in_order = {
        name: at.argsort(kind="stable") for name, (at, _) in columns.items()
    }  # a clock may be set back
    return {name: (at[in_order[name]], value[in_order[name]]) for name, (at, value) in columns.items()}


def moment(text: str) -> float:
    """Returns the Unix seconds of a time; raises ValueError also where no picture could show it."""
    if not 0 <= (at := unix(text)) <= LAST_S:
        raise ValueError(f"{text} is no time of this log")
    return at


def _doubles() -> array[float]:
    return array("d")
