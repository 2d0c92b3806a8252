"""Takes the stacks of a launch's processes: what a trainer that may hang is doing, compared over its ranks.

A rank that announced a signal dumps its own Python stacks, also while it holds the GIL. For one that does not
answer py-spy is asked where it is installed, and /proc always tells where the kernel has each process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.exec import launch_command
from stoker.kit.process import ProcessId, signal_process
from stoker.store.files import opened

MOST_BYTES = 1 << 20  # of a file of stacks; then no more are taken of that launch
ANSWER_S, SETTLED_S = 1.0, 0.05  # for a dump; it is whole once its file has stopped to grow
PY_SPY_S = 5.0  # for all processes together
MOST_PROCESSES = 64
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_ADDRESS = re.compile(r"0x[0-9a-f]+")

Announced = Mapping[int, tuple[int, int]]  # rank -> its pid, and the signal on which it dumps its stacks


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads are at the same place."""

    ranks: tuple[int, ...]
    place: tuple[str, ...]  # the frames, innermost first
    stacks: str  # of all threads of the first


def take(tree: Collection[ProcessId], announced: Announced, files: Mapping[int, Path]) -> dict[int, str]:
    """Returns the Python stacks by rank, as far as they can be had; `files` are where the ranks dump them.

    Takes at most ANSWER_S + PY_SPY_S. A signal is sent only to a process of the tree that announced it and
    catches it: what nobody catches would kill.
    """
    pids = {process.pid: process for process in tree}
    sizes = {rank: _size(files[rank]) for rank in announced}
    asked = {}
    for rank, (pid, signum) in announced.items():
        if pid in pids and sizes[rank] < MOST_BYTES and catches(pid, signum):
            with contextlib.suppress(PermissionError):
                signal_process(pids[pid], signum)
                asked[rank] = files[rank]
    found = _answers(asked, sizes)
    if missing := {rank: pid for rank, (pid, _) in announced.items() if pid in pids and rank not in found}:
        found |= _by_py_spy(missing)
    return found


_COMMAND = re.compile(r"(?m)^(Process \d+): .*$")  # its words may hold a password


def catches(pid: int, signum: int) -> bool:
    """Returns whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except GONE:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _answers(asked: Mapping[int, Path], sizes: Mapping[int, int]) -> dict[int, str]:
    """Waits until every file has grown and grows no more, or for ANSWER_S; returns what has come."""
    until, before = time.monotonic() + ANSWER_S, dict[int, int]()
    while asked and time.monotonic() < until:
        now = {rank: _size(path) for rank, path in asked.items()}
        if now == before and all(now[rank] > sizes[rank] for rank in asked):
            break
        before = now
        time.sleep(SETTLED_S)
    found = {}
    for rank, path in asked.items():
        with contextlib.suppress(OSError), path.open("rb") as stream:
            stream.seek(sizes[rank])
            if text := stream.read(MOST_BYTES).decode("utf-8", "replace"):
                found[rank] = text
    return found


def _by_py_spy(pids: Mapping[int, int]) -> dict[int, str]:
    """Returns what py-spy tells, if it is installed and may look."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    until, found = time.monotonic() + PY_SPY_S, dict[int, str]()
    for rank, pid in pids.items() if program else ():
        command = launch_command([str(program), "dump", "--nonblocking", "--pid", str(pid)], signal.SIGKILL)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, capture_output=True, timeout=max(0.1, until - time.monotonic()), check=True
            )
            told = done.stdout.decode("utf-8", "replace")[:MOST_BYTES]
            found[rank] = _COMMAND.sub(r"\1", told)
    return found


def grouped(stacks: Mapping[int, str]) -> list[Group]:
    """Returns the ranks by the place of their main threads, most ranks first."""
    places: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(stacks):
        places.setdefault(_place(stacks[rank]), []).append(rank)
    groups = [Group(tuple(ranks), place, stacks[ranks[0]]) for place, ranks in places.items()]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def odd_ranks(groups: Sequence[Group]) -> tuple[int, ...]:
    """Returns the ranks that are elsewhere than most; none where no place has the most."""
    if len(groups) < 2 or len(groups[0].ranks) == len(groups[1].ranks):
        return ()
    return tuple(sorted(rank for group in groups[1:] for rank in group.ranks))


def _place(stacks: str) -> tuple[str, ...]:
    """Returns the frames of the main thread, innermost first; py-spy names it, faulthandler has it last."""
    threads = re.split(r"\n(?=(?:Current t|T)hread )", stacks.strip())
    main = next((one for one in threads if '"MainThread"' in one.partition("\n")[0]), threads[-1])
    return tuple(_ADDRESS.sub("0x", line.strip()) for line in main.splitlines()[1:] if line.strip())


def of_kernel(tree: Iterable[ProcessId]) -> Iterator[str]:
    """Yields where the kernel has each process: name, state, wait channel, system call and kernel stack."""
    for process in list(tree)[:MOST_PROCESSES]:
        with contextlib.suppress(*GONE):
            home = Path(f"/proc/{process.pid}")
            lines = (home / "status").read_text(errors="replace").splitlines()  # a name may be any bytes
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            told = {name: _told(home / name) for name in ("wchan", "syscall", "stack")}
            call = told["syscall"] or "unknown"
            name, state, where = status["Name"], status["State"], told["wchan"] or "-"
            yield f"{process.pid} {name}: {state} in {where}; system call {call}"
            yield from (f"  {line}" for line in told["stack"].splitlines())


def _told(path: Path) -> str:
    """Returns what /proc tells; "" where this user may not know."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def append(path: Path, lines: Iterable[str]) -> None:
    """Appends a report, up to MOST_BYTES in all."""
    data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
        os.write(descriptor, data[: max(0, MOST_BYTES - os.fstat(descriptor).st_size)])


def report(head: str, groups: Sequence[Group], tree: Iterable[ProcessId]) -> Iterator[str]:
    """Yields the report of one taking."""
    yield f"== {head}"
    odd = set(odd_ranks(groups))
    for group in groups:
        ranks = f"rank{'s' * (len(group.ranks) > 1)} {', '.join(map(str, group.ranks))}"
        yield f"-- {ranks}{', elsewhere than most' * (group.ranks[0] in odd)}"
        yield group.stacks.rstrip()
    yield "-- processes"
    yield from of_kernel(tree)
