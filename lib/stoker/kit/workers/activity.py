"""One kind of worker: what runs it, how long it may be silent, whether it is used again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """How the workers of one kind of job are started and bounded.

    `module` runs as `python -m module`. `silent_s` bounds the time between two messages, `stall_s` the time
    with neither a message nor CPU time. `is_memory_bound`: the pool's `most_rss_bytes` holds for it.
    `is_reusable`: the module takes one task after another, and an idle worker is given the next. `keep_open`
    leaves its input open for a conversation. `stacks`: past a deadline it leaves its threads' stacks.
    """

    kind: str
    module: str
    silent_s: float = 300.0
    stall_s: float | None = None
    is_memory_bound: bool = False
    is_reusable: bool = False
    keep_open: bool = False
    stacks: bool = False
