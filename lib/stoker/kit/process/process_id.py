"""Processes by what cannot be confused: (pid, start time), parents from /proc, signals through a pidfd.

The guard imports this: standard library only, and none of its big modules.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from typing import NamedTuple

# Fields of /proc/PID/stat, counted after the command name (proc(5)).
_STATE, _PARENT, _START = 0, 1, 19
_DEAD = ("Z", "X")


class ProcessId(NamedTuple):
    """A process: a pid means nothing without its start time (clock ticks since boot)."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Name a process that exists now, a zombie included; ProcessLookupError otherwise."""
        return cls(pid, int(_stat(pid)[_START]))

    def alive(self) -> bool:
        """Whether it still runs; a zombie waiting to be reaped does not."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return False
        return int(fields[_START]) == self.start_ticks and fields[_STATE] not in _DEAD


def _stat(pid: int) -> list[str]:
    try:
        text = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):  # ESRCH: it ended between open and read
        raise ProcessLookupError(f"no process {pid}") from None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    return text[text.rindex(b")") + 2 :].decode("ascii", "replace").split()


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:  # noqa: PTH123 - pathlib would be half of the guard's start
        return stream.read()


def _every_pid() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                yield int(entry.name)


def children_tree(pid: int) -> list[ProcessId]:
    """Every living descendant of a process, parents before children, whatever their sessions; not itself.

    One look at a moving target: who must reach them all looks again until none is left.
    """
    children: dict[int, list[int]] = {}
    alive: dict[int, ProcessId] = {}
    for candidate in _every_pid():
        try:
            fields = _stat(candidate)
        except ProcessLookupError:
            continue
        children.setdefault(int(fields[_PARENT]), []).append(candidate)
        if fields[_STATE] not in _DEAD:
            alive[candidate] = ProcessId(candidate, int(fields[_START]))
    found: list[ProcessId] = []
    queue = list(children.get(pid, ()))
    while queue:
        current = queue.pop(0)
        if current in alive:
            found.append(alive[current])
        queue.extend(children.get(current, ()))
    return found


def processes_with_environment(name: str, value: str) -> list[ProcessId]:
    """Living processes, except this one, that were started with name=value in their environment.

    Sees only processes whose environment this user may read, and none in the middle of its exec: there the
    launcher's death signal ends what has lost its parent.
    """
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for pid in _every_pid():
        if pid == os.getpid():
            continue
        try:
            process = ProcessId.of(pid)
            environ = _read(f"/proc/{pid}/environ")
        except OSError:  # gone meanwhile, or another user's: then not one of ours
            continue
        if wanted in environ.split(b"\0") and process.alive():
            found.append(process)
    return found


def signal_process(process: ProcessId, signum: int) -> bool:
    """Send a signal to exactly this process; False when it is gone. PermissionError passes through."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The pidfd holds whoever has the pid now; equal start times after opening make it the right one.
        if not process.alive():
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def reap_strays(known: Collection[int]) -> list[int]:
    """Reap dead children that nobody waits for, as a subreaper inherits them; `known` ones are left alone."""
    reaped = []
    for pid in _every_pid():
        if pid in known:
            continue
        try:
            fields = _stat(pid)
        except ProcessLookupError:
            continue
        if int(fields[_PARENT]) == os.getpid() and fields[_STATE] == "Z":
            with contextlib.suppress(ChildProcessError):  # another waiter of this process was quicker
                reaped.append(os.waitpid(pid, os.WNOHANG)[0])
    return reaped
