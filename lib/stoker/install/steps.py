"""The smallest steps of an installation: each is whole or has not happened."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

USAGE, DATA, UNAVAILABLE, STORAGE, CONFIG = 64, 65, 69, 74, 78  # as in sysexits.h


class Refused(Exception):
    """What was installed is as it was; the text says why, and what to do."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    # The lock is inherited: where this process is killed, no other begins beside the command.
    return subprocess.run(words, check=False, close_fds=False, text=True, capture_output=True)


def must(code: int, remedy: str, *words: str | Path) -> str:
    """Runs a command and returns its output; raises Refused where it fails."""
    done = run(*words)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise Refused(code, f"{' '.join(map(str, words))} failed ({done.returncode}): {remedy}\n{last}")
    return done.stdout


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock; waits for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another installation, or for what a killed one has started", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(path: Path, data: bytes) -> None:
    """Writes a file by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (part := part_of(path)).open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def link(path: Path, target: str) -> None:
    """Makes a link, or turns it, by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (part := part_of(path)).unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(path)


def part_of(path: Path) -> Path:
    """Returns the name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.part")


def clean(path: Path) -> None:
    """Removes what a kill before a rename, or an earlier version, has left beside a file."""
    for there in (part_of(path), path.with_name(f"{path.name}.new")):
        there.unlink(missing_ok=True)


def remove(paths: Iterable[Path]) -> None:
    """Removes files and links, those that are still there."""
    for path in paths:
        if os.path.lexists(path):
            print(f"remove {path}")
            path.unlink()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
