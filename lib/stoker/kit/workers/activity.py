"""One kind of worker: what runs it, what it may not exceed, whether it is used again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """What a worker at its task may not exceed; None bounds nothing.

    `silent_s` is the time between two messages, `stall_s` the time with neither a message nor CPU time.
    """

    silent_s: float | None = None
    stall_s: float | None = None
    most_rss_bytes: int | None = None


@dataclass(frozen=True)
class Activity:
    """How the workers of one kind of job are started and bounded.

    `module` runs as `python -m module`. `is_memory_bound`: the pool's `most_rss_bytes` holds for it.
    `is_reusable`: the module takes one task after another, and an idle worker is given the next. `keep_open`
    leaves its input open for a conversation.
    """

    kind: str
    module: str
    silent_s: float = 300.0
    stall_s: float | None = None
    is_memory_bound: bool = False
    is_reusable: bool = False
    keep_open: bool = False
