"""How much memory a builder holds: giving back what lies unused, and knowing when a fresh one is better."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa

from stoker.observe.memory import sample_memory

ROOM = 128 << 20  # what a builder may take on top of what its tokenizer alone takes


def resident_bytes() -> int:
    """What this process holds now."""
    return sample_memory().rss_bytes


def give_back() -> None:
    """Return to the system what the allocators keep for later."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


class Footprint:
    """Holds this process to `soft` bytes, or to `loaded` and some room where its tokenizer needs that much.

    `loaded` is what it held before the first text; a fresh process would be no smaller than that.
    """

    def __init__(self, soft: int, loaded: int) -> None:
        self.limit = max(soft, loaded + ROOM)

    def too_large(self) -> bool:
        """Whether it holds more although it gave back what it could."""
        if resident_bytes() <= self.limit:
            return False
        give_back()
        return resident_bytes() > self.limit
