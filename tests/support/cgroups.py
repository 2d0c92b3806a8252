"""Memory cgroups with a limit, where the machine lets us make one."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.observe.machine import MemoryWatch
from support.waiting import wait_until


def is_empty(group: Path) -> bool:
    return not (group / "cgroup.procs").read_text()


@contextlib.contextmanager
def cgroup_of(limit: int) -> Iterator[Path]:
    """A memory cgroup below our own, of version 2 or 1; skips where none can be made."""
    last = "no memory cgroup is mounted"
    for version, ours in MemoryWatch()._groups:
        group = ours / f"stoker-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            last = str(error)
            continue
        try:
            (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
        except OSError as error:
            group.rmdir()
            last = str(error)
            continue
        try:
            yield group
        finally:
            wait_until(functools.partial(is_empty, group), what="the cgroup to be empty")
            group.rmdir()
        return
    pytest.skip(f"NOT TESTED HERE, the kernel's OOM killer: no memory cgroup can be made ({last})")


def inside(group: Path) -> list[str]:
    """What to put before a command so that it runs in a group."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
