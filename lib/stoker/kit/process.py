"""Processes identified by (pid, start time): their tree, memory and CPU time from /proc, signals by pidfd.

The guard imports this module: standard library only, and none of its big modules.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

# Fields of /proc/PID/stat, counted after the command name (proc(5)).
_STATE, _PARENT, _FLAGS, _MAJOR_FAULTS = 0, 1, 6, 9
_USER_TICKS, _SYSTEM_TICKS, _START, _RSS_PAGES = 11, 12, 19, 21
_FORKED = 0x40  # PF_FORKNOEXEC (linux/sched.h)
_DEAD = ("Z", "X")
_PAGE, _TICK_S = os.sysconf("SC_PAGE_SIZE"), 1 / os.sysconf("SC_CLK_TCK")


class ProcessId(NamedTuple):
    """A process; a pid alone may be reused, so the start time (clock ticks since boot) belongs to it."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Returns the id of a process that exists, a zombie included; raises ProcessLookupError otherwise."""
        return cls(pid, int(_stat(pid)[_START]))

    def alive(self) -> bool:
        """Returns whether the process still runs; a zombie that waits to be reaped does not."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return False
        return int(fields[_START]) == self.start_ticks and fields[_STATE] not in _DEAD

    def is_part(self) -> bool:
        """Returns whether it is a worker of its parent's program: a fork without an exec, or their maker."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            is_forked = bool(int(_stat(self.pid)[_FLAGS]) & _FORKED)
            return is_forked or b"from multiprocessing.forkserver" in _read(f"/proc/{self.pid}/cmdline")
        return False


class Sample(NamedTuple):
    """Resident bytes now, and CPU seconds used so far by all threads."""

    rss_bytes: int
    cpu_s: float


class Used(NamedTuple):
    """What a process has used so far; the bytes are those that went from and to storage."""

    cpu_s: float = 0.0
    major_faults: int = 0
    read_bytes: int = 0
    write_bytes: int = 0


class Usage(NamedTuple):
    """What a process holds now, and what it has used."""

    rss_bytes: int
    swap_bytes: int
    used: Used


def _stat(pid: int, proc: os.PathLike[str] | str = "/proc") -> list[str]:
    try:
        text = _read(f"{proc}/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):  # ESRCH: the process ended between open and read
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


def family(pid: int) -> dict[ProcessId, int]:
    """Returns every living descendant of a process, parents first, each with the pid of its parent.

    The tree changes while it is read, so that a process may be missing.
    """
    children = _children()
    found: dict[ProcessId, int] = {}
    queue = [(child, pid) for child in children(pid)]
    while queue:
        current, parent = queue.pop(0)
        try:
            fields = _stat(current)
        except ProcessLookupError:
            continue
        if fields[_STATE] not in _DEAD:
            found[ProcessId(current, int(fields[_START]))] = parent
        queue.extend((child, current) for child in children(current))
    return found


def children_tree(pid: int) -> list[ProcessId]:
    """Returns every living descendant of a process, of any session, parents first; not the process itself.

    The tree changes while it is read: a caller that must reach every process repeats the call until it is
    empty.
    """
    return list(family(pid))


def _children() -> Callable[[int], Iterable[int]]:
    """Returns a function from a pid to its children's.

    Where the kernel has no such file, the stat of every process on the machine says who its parent is.
    """
    is_told = os.path.exists("/proc/thread-self/children")  # noqa: PTH110 - as _read
    return _children_of if is_told else _children_by_stat()


def _children_of(pid: int) -> Iterator[int]:
    """Yields the children of all threads of a process."""
    with (
        contextlib.suppress(FileNotFoundError, ProcessLookupError),  # the process has ended
        os.scandir(f"/proc/{pid}/task") as threads,
    ):
        for thread in threads:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has
                yield from map(int, _read(f"{thread.path}/children").split())


def _children_by_stat() -> Callable[[int], Iterable[int]]:
    children: dict[int, list[int]] = {}
    for candidate in _every_pid():
        with contextlib.suppress(ProcessLookupError):
            children.setdefault(int(_stat(candidate)[_PARENT]), []).append(candidate)
    return lambda pid: children.get(pid, ())


def processes_with_environment(name: str, value: str) -> list[ProcessId]:
    """Returns the living processes, except this one, that were started with name=value in their environment.

    Misses processes whose environment this user may not read, and a process in the middle of its exec: there
    the launcher's death signal ends a process that has lost its parent.
    """
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for pid in _every_pid():
        if pid == os.getpid():
            continue
        try:
            process = ProcessId.of(pid)
            environ = _read(f"/proc/{pid}/environ")
        except OSError:  # ended meanwhile, or another user's process: then not ours
            continue
        if wanted in environ.split(b"\0") and process.alive():
            found.append(process)
    return found


def environment_of(process: ProcessId) -> dict[str, str]:
    """Returns the environment that a process was started with. Raises OSError for another user's."""
    pairs = (each.partition("=") for each in os.fsdecode(_read(f"/proc/{process.pid}/environ")).split("\0"))
    return {name: value for name, _, value in pairs if name}


def signal_process(process: ProcessId, signum: int) -> bool:
    """Sends a signal to exactly this process; False when the process is gone; may raise PermissionError."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The pidfd is of the process that has the pid now; an equal start time after opening proves that it
        # is the right process.
        if not process.alive():
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def reap_strays(known: Collection[int]) -> list[int]:
    """Reaps dead children inherited as a subreaper, except those in `known`: their own waiters reap them."""
    reaped = []
    for pid in list(_children()(os.getpid())):
        if pid not in known:
            # Gone, or still a child: another waiter in this process was quicker.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if _stat(pid)[_STATE] == "Z":
                    reaped.append(os.waitpid(pid, os.WNOHANG)[0])
    return reaped


def sample_process(pid: int, proc: os.PathLike[str] | str = "/proc") -> Sample:
    """Returns the sample of a process, zeros when it is gone. Reads /proc, which no hung mount blocks."""
    try:
        fields = _stat(pid, proc)
    except ProcessLookupError:
        return Sample(0, 0.0)
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return Sample(int(fields[_RSS_PAGES]) * _PAGE, ticks * _TICK_S)


def usage_of(process: ProcessId, *, of_children: bool = True) -> Usage | None:
    """Returns what a process holds and has used; None when it has ended.

    The kernel adds to a process's bytes those of the children that it has reaped; of_children=False gives the
    bytes of its first thread alone, which are without them.
    """
    thread = "" if of_children else f"task/{process.pid}/"
    try:
        fields = _stat(process.pid)
        if int(fields[_START]) != process.start_ticks or fields[_STATE] in _DEAD:
            return None
        swap = _numbers(f"/proc/{process.pid}/status").get(b"VmSwap", 0) * 1024
        moved = _numbers(f"/proc/{process.pid}/{thread}io")
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpu_s = (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) * _TICK_S
    used = Used(cpu_s, int(fields[_MAJOR_FAULTS]), moved.get(b"read_bytes", 0), moved.get(b"write_bytes", 0))
    return Usage(int(fields[_RSS_PAGES]) * _PAGE, swap, used)


def pss_of(pid: int) -> int | None:
    """Returns a process's resident bytes with each shared page divided by its users; None where hidden.

    Waits while the process holds its memory map, as one that hangs in a page fault can for ever: not for the
    loop of a daemon.
    """
    try:
        return _numbers(f"/proc/{pid}/smaps_rollup")[b"Pss"] * 1024
    except (OSError, KeyError):  # it has ended, or begins or ends now, or is another user's
        return None


def _numbers(path: str) -> dict[bytes, int]:
    """Returns the numbers of a file of "name: number" lines; none where this user may not read it."""
    try:
        lines = _read(path).splitlines()
    except PermissionError:
        return {}
    pairs = (line.split(b":", 1) for line in lines if b":" in line)
    words = ((name, rest.split()) for name, rest in pairs)
    return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}


def own_peak_rss() -> int:
    """Returns the peak of this process's resident bytes."""
    lines = _read("/proc/self/status").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"VmHWM:"))


def readable(*descriptors: int, timeout_s: float | None = None) -> set[int]:
    """Returns the descriptors that are readable or at their end, after at most timeout_s (None: no limit).

    Unlike select(2), poll(2) takes descriptors above 1,023.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    wait_ms = None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000)
    return {descriptor for descriptor, _ in poll.poll(wait_ms)}


def signal_name(signum: int) -> str:
    """Returns the signal's name (SIGKILL for 9); real-time signals have no names and give "signal N"."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
