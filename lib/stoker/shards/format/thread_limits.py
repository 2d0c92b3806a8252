"""Limits a worker to one thread; import before the native libraries, which read the variables when loaded.

Workers scale by processes, which is faster, and an unused pool of threads costs start-up and memory. So does
a garbage collection after every few hundred objects while modules and tokenizers load, which stay: a third of
that time.
"""

from __future__ import annotations

import ctypes
import gc
import os

os.environ.update(
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    RAYON_NUM_THREADS="1",
    FASTOKENS_BPE_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    JE_ARROW_MALLOC_CONF="background_thread:false",  # of an allocator that is loaded and not used
)


gc.set_threshold(100_000)

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)


def one_thread() -> None:
    """Limits Arrow to the calling thread, and all allocation to one allocator that returns memory."""
    import pyarrow as pa  # noqa: PLC0415 - after the variables above

    libc = ctypes.CDLL(None)
    libc.mallopt(_ARENA_MAX, 1)  # one thread must be able to use the memory that another freed
    libc.mallopt(_MMAP_THRESHOLD, 4 << 20)  # a larger block is its own mapping, unmapped when freed
    libc.mallopt(_TRIM_THRESHOLD, 64 << 20)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
