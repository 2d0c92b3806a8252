"""How much memory a builder holds: giving back what lies unused, and knowing when a fresh one is better."""

from __future__ import annotations

import ctypes
import gc
import os

import pyarrow as pa

ROOM = 128 << 20  # what a builder may take on top of what its tokenizer alone takes
CACHE_ROOM = 100 << 20  # the same before the engine forgets the words it has seen: it grows by 60 MB at once
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process holds now."""
    with open("/proc/self/statm", "rb") as stream:  # noqa: PTH123 - with every batch
        return int(stream.read().split()[1]) * _PAGE


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
        self._was_too_large = False
        self._crowded = loaded + CACHE_ROOM

    def crowded(self) -> bool:
        """Whether it is time that the engine forgets the words it has seen."""
        return resident_bytes() > self._crowded

    def forgotten(self) -> None:
        """It did; where something else takes the memory, a large document say, more is let pass now."""
        give_back()
        if (left := resident_bytes()) > self._crowded:
            self._crowded = left + CACHE_ROOM

    def too_large(self) -> bool:
        """Whether it holds more although it gave back what it could; asked at each commit.

        Twice in a row: once may be one large document, which is gone with its batch.
        """
        before, self._was_too_large = self._was_too_large, False
        if resident_bytes() > self.limit:
            give_back()
            self._was_too_large = resident_bytes() > self.limit
        return before and self._was_too_large
