"""How many descriptors a process may hold open.

Each worker costs its daemon a few (three pipes, the process itself), and shells and services hand down soft
limits from the days of select(2), far below what the kernel grants.
"""

from __future__ import annotations

import resource

from stoker.store.errors import UnavailableError

WANTED = 8192  # a thousand workers and what they are told by; more is left as it is
LEAST = 256  # a daemon with workers on a few CPUs; below, the first busy hour would end in EMFILE


def allow_open_files() -> None:
    """Raise this process's soft limit, and its children's, to what is wanted or granted.

    Raises UnavailableError where that is not enough to work with.
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
