"""The description of a kind of worker: its module, its bounds, its reuse."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """The bounds of a worker at its task; None means no bound.

    `silent_s` is the time between two messages, `stall_s` the time with neither a message nor CPU time.
    """

    silent_s: float | None = None
    stall_s: float | None = None
    most_rss_bytes: int | None = None


@dataclass(frozen=True)
class Activity:
    """The start and the bounds of the workers of a kind of job.

    `module` runs as `python -m module`. `is_memory_bound`: the pool's `most_rss_bytes` holds for the worker.
    `is_reusable`: the module takes task after task, and an idle worker gets the next task. `keep_open` leaves
    the worker's input open for further messages.
    """

    kind: str
    module: str
    silent_s: float = 300.0
    stall_s: float | None = None
    is_memory_bound: bool = False
    is_reusable: bool = False
    keep_open: bool = False
