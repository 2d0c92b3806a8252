"""The trainer's side of its sealer: the process, and the memory that states are handed over in."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stoker.checkpoints.sealer import IGNORED, MOST_BYTES
from stoker.kit.exec import launch_command
from stoker.kit.process import ProcessId, readable, signal_name, usage_of
from stoker.store.errors import DataError, StorageError
from stoker.store.files import canonical_json
from stoker.store.record import parse_json

WAIT_S = 1.0  # for an answer, at most

File = tuple[str, Sequence[Any]]  # a name, and parts: bytes, or whatever has `nbytes` and holds them


class Memory:
    """Memory shared with a sealer, kept from save to save: it grows and never shrinks."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("stoker-checkpoint", os.MFD_CLOEXEC)
        self.view = self._before = memoryview(b"")

    def reserve(self, size: int) -> None:
        """Takes at least so many bytes from the machine, now; raises OSError."""
        try:
            os.posix_fallocate(self.descriptor, 0, size)
            # Populated here: at the first copy the page faults would stop training for longer than the copy.
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            # The map before stays until a device has let go of its pages; both are of the same memory.
            self._before, self.view = self.view, memoryview(mmap.mmap(self.descriptor, size, flags=flags))
        except OSError:
            os.ftruncate(self.descriptor, self.view.nbytes)
            raise


class Layout(NamedTuple):
    """Where each part of a state lies in a memory, and where the description for the sealer."""

    parts: list[tuple[Any, int, int]]  # a part, its start and its end
    at: int  # of the description
    description: bytes

    @property
    def size(self) -> int:
        return self.at + len(self.description)


def lay_out(files: Iterable[File], body: Mapping[str, Any]) -> Layout:
    """Returns the layout of a checkpoint: its files are images, each from a page boundary on (O_DIRECT)."""
    parts, listed, at = [], [], 0
    for name, content in files:
        begin = at
        for part in content:
            size = memoryview(part).nbytes if isinstance(part, bytes) else part.nbytes
            parts.append((part, at, at + size))
            at += size
        listed.append((name, begin, at - begin))
        at += -at % mmap.PAGESIZE
    return Layout(parts, at, canonical_json({"step": body["step"], "body": body, "files": listed}))


class Sealer:
    """A sealer and the channel to it; a new process follows one that has ended."""

    def __init__(self, checkpoints: Path, launch: str, *, keeps: Sequence[int] = ()) -> None:
        """Starts it; `keeps` are descriptors that it keeps open: those of the locks that must outlive us."""
        self.checkpoints, self.launch = checkpoints, launch
        self._keeps = tuple(keeps)
        self._start()

    def _start(self) -> None:
        self._is_ready = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = (sys.executable, "-P", "-m", "stoker.checkpoints.sealer")
        command = launch_command([*module, str(theirs.fileno()), str(self.checkpoints), self.launch])
        # The mask is inherited: no stop may end it before it ignores them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), *self._keeps)
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def give(self, memory: Memory, layout: Layout) -> None:
        """Hands a state over, which is then sealed whatever becomes of this process; raises StorageError."""
        if self._process.poll() is not None:
            self._channel.close()
            self._start()
        if not self._is_ready:
            self._is_ready = bool(self._received(wait=True).get("ready"))
        order = {"at": layout.at, "size": len(layout.description)}
        try:
            socket.send_fds(self._channel, [json.dumps(order).encode()], [memory.descriptor])
        except OSError as error:
            raise self._ended() from error

    def answer(self, *, wait: bool) -> str:
        """Returns the sealed checkpoint's name, "" if it is not sealed yet; may wait a second for it.

        Raises StorageError where it could not be sealed, DataError where another one has its name.
        """
        if wait and not readable(self._channel.fileno(), timeout_s=WAIT_S):
            return ""
        found = self._received(wait=wait)
        if "failed" not in found:
            return str(found.get("sealed", ""))
        if found["code"] == DataError.exit_code:
            raise DataError(found["failed"])
        raise StorageError(found["failed"], found["errno"])

    @property
    def written_bytes(self) -> int:
        """Returns what the process has written to storage so far."""
        usage = usage_of(ProcessId.of(self._process.pid))
        return usage.used.write_bytes if usage is not None else 0

    def end(self) -> None:
        """Lets it finish what it has, and waits for its end."""
        self._channel.close()
        self._process.wait()

    def _received(self, *, wait: bool) -> dict[str, Any]:
        try:
            message = self._channel.recv(MOST_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return {}
        except ConnectionError:
            message = b""
        if not message:
            raise self._ended()
        found: dict[str, Any] = parse_json(message)
        return found

    def _ended(self) -> StorageError:
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
        return StorageError(f"the sealer ended ({how}) before the checkpoint was sealed")
