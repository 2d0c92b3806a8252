"""One thread a worker: imported before the native libraries, which look when they are loaded.

Workers scale by processes, which is faster; and a pool of threads that nobody uses costs start-up and memory.
So does looking for cycles after every few hundred objects, while modules and tokenizers are loaded that stay:
a third of that time.
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
    """Keep Arrow to the calling thread, and all to one allocator that gives memory back."""
    import pyarrow as pa  # noqa: PLC0415 - after the variables above

    libc = ctypes.CDLL(None)
    libc.mallopt(_ARENA_MAX, 1)  # what one thread gives back must serve the others
    libc.mallopt(_MMAP_THRESHOLD, 4 << 20)  # what is larger is a mapping of its own, gone when it is freed
    libc.mallopt(_TRIM_THRESHOLD, 64 << 20)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
