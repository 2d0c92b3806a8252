"""One thread a worker: imported before the native libraries, which look when they are loaded.

Workers scale by processes, which is faster; and a pool of threads that nobody uses costs start-up and memory.
"""

from __future__ import annotations

import os

os.environ.update(
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    RAYON_NUM_THREADS="1",
    FASTOKENS_BPE_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
)


def one_thread() -> None:
    """Keep Arrow to the calling thread, and to an allocator that gives memory back."""
    import pyarrow as pa  # noqa: PLC0415 - after the variables above

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
