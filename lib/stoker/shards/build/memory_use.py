"""A builder's memory: returns unused memory to the system, and shows when a fresh process is better."""

from __future__ import annotations

import ctypes
import gc
import os

import pyarrow as pa

ROOM = 128 << 20  # for a builder on top of its tokenizer's memory
CACHE_ROOM = 90 << 20  # the same before the engine's word cache is dropped: the cache grows by 60 MB at once
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Returns the resident bytes of this process."""
    with open("/proc/self/statm", "rb") as stream:  # noqa: PTH123 - with every batch
        return int(stream.read().split()[1]) * _PAGE


def give_back() -> None:
    """Returns memory that the allocators keep for later use to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


class Footprint:
    """Holds this process to `soft` bytes, or to `loaded` and some room where its tokenizer needs more.

    `loaded` is the resident bytes before the first text; a fresh process would be no smaller.
    """

    def __init__(self, soft: int, loaded: int) -> None:
        self.limit = max(soft, loaded + ROOM)
        self._was_too_large = False
        self._crowded = loaded + CACHE_ROOM

    def crowded(self) -> bool:
        """Whether to drop the engine's word cache now."""
        return resident_bytes() > self._crowded

    def forgotten(self) -> None:
        """Raises the limit where memory stays in use after the cache was dropped, as by a large document."""
        give_back()
        if (left := resident_bytes()) > self._crowded:
            self._crowded = left + CACHE_ROOM

    def too_large(self) -> bool:
        """Whether this process exceeds its limit even after returning memory; called at each commit.

        True only the second time in a row: the first may be a large document, which leaves with its batch.
        """
        before, self._was_too_large = self._was_too_large, False
        if resident_bytes() > self.limit:
            give_back()
            self._was_too_large = resident_bytes() > self.limit
        return before and self._was_too_large
