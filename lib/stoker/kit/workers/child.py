"""The worker's side: reads the task, reports by JSON lines, ends with a result or an error.

A worker module ends with `if __name__ == "__main__": run_worker(main)`. Standard output belongs to the
protocol: prints of other code go to standard error. When its daemon ends for any reason, the kernel kills the
worker at once, so the files that a worker leaves must survive a kill at any instruction.

With `many=True` the worker takes a task from each line of its input and ends each task with `{"done":
result}`. An error ends the process as in any worker; the end of its input ends the process with exit code 0.

A task whose `disks` hold marks, {"path", "device", "inode"} of an owner lock, begins only while each of these
disks is mounted.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from stoker.kit.process import readable
from stoker.store.errors import UnavailableError
from stoker.store.record import parse_json

EVERY_S = 0.5  # between two messages about progress: a daemon reads them at any transfer speed
NICE = 10  # a tenth of training's share of a contended CPU
ALIVE_EVERY_S = 5.0  # a worker silent for too long is judged hung
LINE_LIMIT = 4 << 20  # bytes of one message, in either direction; a longer message is cut, and so is none


class LineBuffer:
    """Cuts a byte stream into lines as its pieces arrive; of a longer line only `limit` bytes are kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes; returns the lines that they complete, without newlines."""
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[: self.limit]
        return [line[: self.limit] for line in lines]

    def finish(self) -> list[bytes]:
        """Returns the text after the last newline, once the stream has ended."""
        rest, self._partial = self._partial, b""
        return [rest] if rest else []


class WorkerStopped(BaseException):
    """The daemon asked this worker to stop. Not an Exception, so that no error handler swallows it."""

    exit_code = os.EX_TEMPFAIL


class InputClosed(EOFError):
    """The daemon closed this worker's input: no further line will come."""


class Report:
    """A worker's messages to and from its daemon; sending is thread-safe, receiving is not.

    Only the main thread receives.
    """

    def __init__(self, output: int, *, stop_anywhere: bool = False) -> None:
        self.stopping = False
        self._output = output
        self._lock = threading.Lock()
        self._lines = LineBuffer(LINE_LIMIT)
        self._received: list[bytes] = []
        self._stop_anywhere = stop_anywhere
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __call__(self, kind: str, **fields: Any) -> None:
        """Sends one message; the kernel has the message when this returns."""
        self._write({"kind": kind, **fields})

    def raise_if_stopping(self) -> None:
        """Raises WorkerStopped if the daemon has asked for a stop; called where a stop is safe."""
        if self.stopping:
            raise WorkerStopped

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Returns the daemon's next line, or None after timeout_s or on a stop.

        Raises InputClosed when no further line can come.
        """
        while not self._received:
            if self.stopping:
                return None
            ready = readable(0, self._wake_read, timeout_s=timeout_s)
            if 0 in ready:
                self._read_input()
            elif not ready:
                return None
        message: dict[str, Any] = parse_json(self._received.pop(0))
        return message

    def _read_input(self) -> None:
        data = os.read(0, 1 << 16)
        self._received += self._lines.feed(data) if data else self._lines.finish()
        if not data and not self._received:
            raise InputClosed("the daemon closed the input in the middle of a task")

    def _write(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._output, data) :]

    def _on_stop(self, _signum: int, _frame: FrameType | None) -> None:
        self.stopping = True
        if self._stop_anywhere:
            self._stop_anywhere = False  # once: a second TERM must not interrupt the clean-up
            raise WorkerStopped


def paced(report: Callable[..., Any], every_s: float = EVERY_S) -> Callable[..., None]:
    """Returns `report` as a callback that passes on one call in every_s seconds."""
    due = 0.0

    def progress(*about: Any) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every_s
            report(*about)

    return progress


def heartbeat(report: Callable[..., None], name: str) -> Callable[[int], None]:
    """Returns a callback for the bytes read so far that sends a `progress` message every few seconds."""
    return paced(lambda done: report("progress", reading=name, bytes=done), ALIVE_EVERY_S)


def give_way() -> None:
    """Lowers this process's CPU and disk priority for good."""
    import psutil  # noqa: PLC0415 - few workers need it

    with contextlib.suppress(OSError, psutil.Error):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def run_worker(
    main: Callable[[dict[str, Any], Report], dict[str, Any]],
    *,
    stop_anywhere: bool = False,
    many: bool = False,
) -> NoReturn:
    """Runs main(task, report) and ends the process: exit 0 with main's result, else the error's exit code.

    SIGTERM sets `report.stopping`; with stop_anywhere=True it raises WorkerStopped anywhere in main, which is
    right for work that only reads. With many=True main is called for each task.
    """
    report = Report(_own_output(), stop_anywhere=stop_anywhere)
    faulthandler.enable()  # a segfault leaves its stack in the stderr lines that the daemon keeps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon handles Ctrl-C
    signal.set_wakeup_fd(report._wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, report._on_stop)
    code = 0
    last: dict[str, Any] | None
    try:
        last = _serve(main, report, many=many)
    except BaseException as error:  # noqa: BLE001 - the process ends here; the error travels in the last line
        code = exit_code_of(error)
        last = {"error": _describe(error, code)}
    report._stop_anywhere = False
    with contextlib.suppress(BrokenPipeError):  # the daemon is gone and cannot read
        if last is not None:
            report._write(last)
    sys.stderr.flush()
    # Not sys.exit: the clean-up of a native library must not turn a finished job into a crash.
    os._exit(code)


def _serve(
    main: Callable[[dict[str, Any], Report], dict[str, Any]], report: Report, *, many: bool
) -> dict[str, Any] | None:
    """Does the task, or with `many` each task until the input ends; returns the last message to send."""
    while True:
        try:
            task = report.receive()
        except InputClosed:
            if many:
                return None
            raise
        report.raise_if_stopping()
        task = task or {}
        insist_mounted(task.get("disks", ()))
        result = main(task, report)
        if not many:
            return {"result": result}
        report._write({"done": result})


def insist_mounted(disks: Iterable[Mapping[str, Any]]) -> None:
    """Raises UnavailableError unless the owner lock that marks each disk is still in its place.

    Below an unmounted mount point a worker would fill, or find empty, another disk.
    """
    for mark in disks:
        path = Path(mark["path"])
        try:
            found = path.stat()
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}; mount the disk again") from error
        if (found.st_dev, found.st_ino) != (mark["device"], mark["inode"]):
            raise UnavailableError(f"{path} is not the one it was: another disk is mounted there")


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code for an error: its own `exit_code`, 74 for the system's I/O errors, else 70."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    return os.EX_IOERR if isinstance(error, OSError) else os.EX_SOFTWARE


def _describe(error: BaseException, code: int) -> dict[str, Any]:
    if code == os.EX_SOFTWARE:  # an unexpected error: the stack says more than the message
        traceback.print_exception(error)
    described: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "exit_code": code}
    if isinstance(error, WorkerStopped):
        described["message"] = "stopped as asked"
    if isinstance(error, OSError) and error.errno is not None:
        described["errno"] = error.errno
    return described


def _own_output() -> int:
    """Returns a private descriptor for the protocol; points standard output, C libraries' too, at stderr."""
    own = os.dup(1)  # close-on-exec, unlike 1
    os.dup2(2, 1)
    return own
