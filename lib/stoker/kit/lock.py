"""Exclusive `flock(2)` locks whose contents name the holder; such a file marks the owner of a state.

The kernel releases a lock when its holder ends, so no lock is ever stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.kit.process import ProcessId
from stoker.store.errors import ConfigError, LockHeld, StorageError, storage_errors
from stoker.store.record import parse_json, utc_now

if TYPE_CHECKING:  # workers take locks, too, and stay small
    from stoker.config.schema import Pipeline

CONTENTS_LIMIT = 1 << 16
# read_holder() takes a shared lock for an instant; that alone must not make a daemon refuse to start.
LOOKER_PATIENCE_S = 0.3


@dataclass(frozen=True)
class Holder:
    """The holder of a lock as the lock file describes it: for messages, and to find its runtime directory."""

    pid: int | None
    purpose: str
    since: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.purpose or 'unknown'} (pid {self.pid or 'unknown'}, since {self.since or 'unknown'})"


class Lock:
    """An exclusive lock on a file, for as long as this object or a child has the file open."""

    def __init__(self, path: Path, descriptor: int, contents: dict[str, Any]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._contents = contents

    @classmethod
    def acquire(cls, path: Path, *, purpose: str, extra: Mapping[str, Any] | None = None) -> Lock:
        """Takes the lock; raises LockHeld naming the holder, or StorageError when the file cannot be made."""
        give_up = time.monotonic() + LOOKER_PATIENCE_S
        while (descriptor := _try(path)) is None:
            if time.monotonic() >= give_up:
                holder = read_contents(path)
                raise LockHeld(f"{path} is held by {holder}; stop that one first, or wait for it")
            time.sleep(0.02)
        me = ProcessId.of(os.getpid())
        contents = {
            "pid": me.pid,
            "start": me.start_ticks,
            "host": socket.gethostname(),
            "purpose": purpose,
            "since": utc_now(),
            **(extra or {}),
        }
        lock = cls(path, descriptor, contents)
        lock._write()
        return lock

    @classmethod
    def adopted(cls, path: Path, descriptor: int) -> Lock:
        """Returns the lock that this process took before its execv."""
        return cls(path, descriptor, dict(parse_json(os.pread(descriptor, CONTENTS_LIMIT, 0))))

    def update(self, extra: Mapping[str, Any]) -> None:
        """Adds fields to the holder's description in the lock file."""
        self._contents |= extra
        self._write()

    def fileno(self) -> int:
        """Returns the locked descriptor; pass it to a child that must hold the lock too."""
        return self._descriptor

    def release(self) -> None:
        """Releases the lock now, also for every child that has the descriptor."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.handed_over()

    def handed_over(self) -> None:
        """Closes this process's descriptor; the lock lasts as long as a child has its copy open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _write(self) -> None:
        data = json.dumps(self._contents, sort_keys=True).encode() + b"\n"
        # The contents are informational: a full disk must not stop a daemon whose lock is sound.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))


@contextlib.contextmanager
def hold_directory(directory: Path, held: str) -> Iterator[None]:
    """Locks a directory against every other caller of this function; raises LockHeld, saying `held`."""
    with storage_errors("open", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeld(held) from error
        yield
    finally:
        os.close(descriptor)


def _try(path: Path) -> int | None:
    """Returns the locked descriptor, or None while another process holds the lock."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StorageError(f"cannot open the lock file {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"{path}: this file system has no locks: {error.strerror}") from error
        if still_named(path, descriptor):
            return descriptor
        os.close(descriptor)  # replaced while we waited: two processes could each hold "the" lock


def still_named(path: Path, descriptor: int) -> bool:
    """Returns whether `path` still names the open file."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def read_contents(path: Path) -> Holder:
    """Returns the holder that the lock file describes, locked or not; an empty Holder if unreadable."""
    contents: Any = {}
    try:
        with path.open("rb") as stream:
            contents = parse_json(stream.read(CONTENTS_LIMIT).split(b"\n", 1)[0])
    except (OSError, ValueError):  # missing, or caught between two writes
        pass
    known: dict[str, Any] = contents if isinstance(contents, dict) else {}
    pid = known.pop("pid", None)
    purpose, since = str(known.pop("purpose", "")), str(known.pop("since", ""))
    return Holder(pid if isinstance(pid, int) else None, purpose, since, known)


def read_holder(path: Path) -> Holder | None:
    """Returns the holder of the lock now; None when no process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_contents(path)
    finally:
        os.close(descriptor)  # releases the shared lock
    return None


def another_owner(pipeline: Pipeline) -> str:
    """Returns why the state directory belongs to another pipeline, and the remedy; empty if it does not.

    Pipelines that shared one would use each other's records.
    """
    file = pipeline.layout.owner_lock
    owner = read_contents(file).purpose
    if owner in ("", _owner(pipeline)):
        return ""
    return (
        f"{pipeline.layout.state} is that of {owner}, and this is {_owner(pipeline)}; give it a `state:` of "
        f"its own, or, if it is the same pipeline under a new name, remove {file}"
    )


def require_own_state(pipeline: Pipeline) -> None:
    """Raises ConfigError where the state directory belongs to another pipeline."""
    if why := another_owner(pipeline):
        raise ConfigError(f"{pipeline.file}: state: {why}")


def take_up_state(pipeline: Pipeline) -> None:
    """Creates missing parts of the state directory and marks it as this pipeline's.

    Raises ConfigError where it belongs to another pipeline.
    """
    require_own_state(pipeline)
    pipeline.layout.create()
    file = pipeline.layout.owner_lock
    if not read_contents(file).purpose:  # new, or from a version without marks
        Lock.acquire(file, purpose=_owner(pipeline)).release()


def _owner(pipeline: Pipeline) -> str:
    return f"pipeline {pipeline.name}"
