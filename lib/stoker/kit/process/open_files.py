"""The limit on open descriptors of a process.

Each worker costs its daemon a few (three pipes, the pidfd), and shells and services pass on soft limits from
the days of select(2), far below the limit that the kernel grants.
"""

from __future__ import annotations

import resource

from stoker.store.errors import UnavailableError

WANTED = 8192  # enough for a thousand workers and their pipes; a higher limit is kept
LEAST = 256  # enough for a daemon with workers on a few CPUs; below, the first busy hour would end in EMFILE


def allow_open_files() -> None:
    """Raises this process's soft limit, which children inherit, to WANTED or as far as granted.

    Raises UnavailableError where fewer than LEAST files may be open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
        soft = granted
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise UnavailableError(
            f"only {hard} files may be open at once, {LEAST} are needed; raise the hard limit "
            "(ulimit -Hn, LimitNOFILE= of the unit)"
        )
