"""The smallest steps of an installation: each is whole or has not happened."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

USAGE, DATA, UNAVAILABLE, STORAGE, CONFIG = 64, 65, 69, 74, 78  # as in sysexits.h


class Refused(Exception):
    """What was installed is as it was; the text says why, and what to do."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Steps:
    """Says what is done and does it; in a dry run it only says so."""

    is_dry: bool
    lock: int | None = None

    def do(self, text: str, action: Callable[..., Any], *arguments: Any) -> None:
        """Says and does one thing."""
        print(f"would {text}" if self.is_dry else text, flush=True)
        if not self.is_dry:
            action(*arguments)

    def command(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command that keeps the lock: where this process is killed, no other begins beside it."""
        kept = () if self.lock is None else (self.lock,)
        return subprocess.run(words, check=False, pass_fds=kept, text=True, capture_output=True)

    def must(self, code: int, remedy: str, *words: str | Path) -> None:
        """Runs a command; raises Refused where it fails."""
        done = self.command(*words)
        if done.returncode:
            last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
            raise Refused(code, f"{' '.join(map(str, words))} failed ({done.returncode}): {remedy}\n{last}")

    @contextlib.contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Holds the lock; waits for whoever has it."""
        if self.is_dry:
            yield
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another installation, or for what a killed one has started", flush=True)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(self.lock)
            self.lock = None


@dataclass
class Record:
    """The prefix, and for each laid file the digests of what was laid there, or is about to be."""

    prefix: str
    files: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Returns the record of an installation; None where there is none, or a damaged one."""
        try:
            body = json.loads(path.read_text())
            return cls(str(body["prefix"]), {str(name): list(sums) for name, sums in body["files"].items()})
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            print(f"{path} is damaged: what differs from the new files counts as edited")
            return None

    def write(self, path: Path) -> None:
        """Writes the record."""
        write(path, json.dumps({"v": 1, "prefix": self.prefix, "files": self.files}, indent=1).encode())


def write(path: Path, data: bytes) -> None:
    """Writes a file by one rename; anyone may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    with part.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
    sync_directory(path.parent)


def link(path: Path, target: str) -> None:
    """Makes a link, or moves it, by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(path)
    sync_directory(path.parent)


def remove_environment(path: Path, marker: str) -> None:
    """Removes an environment; what is left of it after a kill does not pass for a whole one."""
    (path / marker).unlink(missing_ok=True)
    shutil.rmtree(path)


def part_of(path: Path) -> Path:
    """Returns the name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.part")


def beside(path: Path) -> Path:
    """Returns where the new content of an edited file goes; systemd ignores that name."""
    return path.with_name(f"{path.name}.new")


def digest(data: bytes) -> str:
    """Returns the sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of(path: Path) -> str | None:
    """Returns the sha256 of a file; None where there is none."""
    return digest(path.read_bytes()) if path.is_file() else None


def sync_directory(path: Path) -> None:
    """Makes a rename durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
