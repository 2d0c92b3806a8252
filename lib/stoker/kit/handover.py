"""A daemon begins again in place: `become` starts its own command by execv, and `take_over` goes on there.

The process stays the same, and with it its children, their death signals, and the locks of the open files
that are handed over. What the new image must know lies in a memfd, which one environment variable names; both
are gone once they are read, and no file can be left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.kit.process import ProcessId
from stoker.store.errors import Transient
from stoker.store.record import parse_json

VARIABLE = "STOKER_HANDOVER"  # "<pid> <descriptor>": whose it is, and the memfd
STDERR = 2
VERSION = 1  # of the record; code that expects another one cannot take over


@dataclass(frozen=True)
class Handover:
    """What the image before left: descriptors by name, and the facts of the daemon and of its work."""

    descriptors: Mapping[str, int]
    daemon: Mapping[str, Any]
    work: Mapping[str, Any]


def take_over() -> Handover | None:
    """Returns what the image before this one handed over; None where this process has just been started."""
    pid, _, memory = os.environ.pop(VARIABLE, "").partition(" ")
    if pid != str(os.getpid()):
        return None
    with open(int(memory), "rb") as stream:  # noqa: PTH123 - a descriptor
        body = parse_json(stream.read())
    handover = Handover(**body)
    for descriptor in handover.descriptors.values():
        os.set_inheritable(descriptor, False)
    return handover


def become(handover: Handover) -> None:
    """Starts this process's command line anew; call it from the main thread, with its signals blocked.

    Returns only by an OSError: the program cannot be started, and this image goes on as it was.
    """
    memory = os.memfd_create("handover")
    kept = (memory, *handover.descriptors.values())
    try:
        os.write(memory, json.dumps(vars(handover)).encode())
        os.lseek(memory, 0, os.SEEK_SET)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers; libraries may leave some inheritable
            with contextlib.suppress(OSError):  # the listing's own
                if int(name) > STDERR:
                    os.set_inheritable(int(name), int(name) in kept)
        environ = {**os.environ, VARIABLE: f"{os.getpid()} {memory}"}
        python = interpreter()
        os.execve(python, [python, *sys.orig_argv[1:]], environ)  # noqa: S606 - no shell
    finally:  # only where it has failed
        for descriptor in kept:
            os.set_inheritable(descriptor, False)
        os.close(memory)


def interpreter() -> str:
    """Returns the Python that this process's command line names now.

    An upgrade moves the link in /opt/stoker/current/bin/stoker-stage-shard: the command then lies in another
    environment, and its interpreter beside it. Until it begins again, a process keeps to its own.
    """
    script = Path(sys.orig_argv[1] if len(sys.orig_argv) > 1 else "")
    python = script.resolve().with_name("python") if script.is_absolute() else script
    return str(python) if script.is_absolute() and os.access(python, os.X_OK) else sys.executable


@contextlib.contextmanager
def signals_blocked(signums: frozenset[signal.Signals]) -> Iterator[None]:
    """Keeps signals waiting in the kernel, also over an execv: there they would meet no handler at first."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signums)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class AdoptedChild:
    """A child that this process started before its execv, with the calls of a Popen that a daemon needs."""

    def __init__(self, process: ProcessId) -> None:
        """Raises Transient where no such child is there, alive or waiting to be reaped."""
        try:
            found = ProcessId.of(process.pid)
        except ProcessLookupError:
            found = None
        if found != process:
            raise Transient(f"process {process.pid}, a child of this one, is gone; start again")
        self.pid = process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or minus the signal, once the child has ended; reaps it."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Sends a signal unless the child has ended; until it is reaped, no other process has its pid."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
