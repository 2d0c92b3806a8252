"""A worker that forks workers: `python -m stoker.kit.fork_worker`, with what they need loaded already.

A task {"module", ...} has that module's `preload(task)` load something, and its result is that of the task.
Between tasks each packet on the control socket asks for a worker: {"module", "parent"} and the three
descriptors that become its standard ones; the answer is {"pid"}, or {"errno"} where there is no room.
The module's `serve()` is then what its process does.

A worker is forked twice, and who forked it ends: so it becomes the child of its daemon, a child subreaper
(prctl(2)), which waits for it as for any other and whose end is its death. Only one thread may run here, for
a fork copies no other, and not the locks that the others hold.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from stoker.kit.worker_main import (
    CONTROL_VARIABLE,
    EXIT_AGAIN,
    EXIT_SOFTWARE,
    PACKET_BYTES,
    PARENT_VARIABLE,
    Report,
    run_worker,
)
from stoker.store.parsing import parse_json

_ARG_START, _ARG_END = 45, 46  # of /proc/PID/stat, counted after the command name (proc(5))
_PID_BYTES = 8
_STREAMS = 3


def load(task: dict[str, Any], _report: Report) -> dict[str, Any]:
    """Have a module load what the workers need; raises RuntimeError where that left threads running.

    A TERM ends it at once: native code hears of none, and there is nothing to put in order.
    """
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    result: dict[str, Any] = importlib.import_module(str(task["module"])).preload(task)
    signal.signal(signal.SIGTERM, handler)
    if (threads := len(list(os.scandir("/proc/self/task")))) != 1:
        raise RuntimeError(f"{task['module']} left {threads - 1} threads running, which no fork would copy")
    gc.collect()
    gc.freeze()  # or each look for cycles in a worker would copy the pages of all that is shared
    return result


class Forks:
    """The control socket's requests, one at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def serve(self) -> None:
        """Fork the worker that is asked for, and answer; in the worker this does not return."""
        data, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, _STREAMS)
        if not data:  # the daemon holds no end of it any more
            os._exit(0)
        try:
            answer = {"pid": self._fork(parse_json(data), descriptors)}
        except OSError as error:
            answer = {"errno": error.errno or 0}
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):  # nobody waits for it any more
            self._control.send(json.dumps(answer).encode())

    def _fork(self, request: Mapping[str, Any], descriptors: list[int]) -> int:
        if len(descriptors) != _STREAMS:  # there was no room for them here
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        told, tell = os.pipe2(os.O_CLOEXEC)
        # A TERM that comes before the worker has handlers of its own must not be taken by this server's.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        with os.fdopen(told, "rb", buffering=0) as answer:
            try:
                between = os.fork()
                if between == 0:
                    self._fork_again(request, descriptors, tell)
            finally:
                os.close(tell)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            said = int.from_bytes(answer.read(_PID_BYTES), "little", signed=True)
        os.waitpid(between, 0)  # from here on the worker is the daemon's
        if said <= 0:
            raise OSError(-said, os.strerror(-said))
        return said

    def _fork_again(self, request: Mapping[str, Any], descriptors: list[int], tell: int) -> NoReturn:
        between = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            self._become(request, descriptors, between)
        if pid > 0:
            with suppress(OSError):  # it did so itself, or ended
                os.setpgid(pid, pid)
        os.write(tell, pid.to_bytes(_PID_BYTES, "little", signed=True))
        os._exit(0)

    def _become(self, request: Mapping[str, Any], descriptors: list[int], between: int) -> NoReturn:
        """Be the worker: with a group, standard descriptors, name and environment of its own."""
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.setpgid(0, 0)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            self._control.detach()
            os.closerange(3, 1 + max(int(entry.name) for entry in os.scandir("/proc/self/fd")))
            module = str(request["module"])
            os.environ[PARENT_VARIABLE] = str(request["parent"])
            sys.argv, sys.orig_argv = [module], [*sys.orig_argv[: sys.orig_argv.index("-m") + 1], module]
            show_as(sys.orig_argv)
            wait_for_parent(int(request["parent"]), between)
            importlib.import_module(module).serve()
        except BaseException:  # noqa: BLE001 - nothing may go on as the fork server that it was
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(EXIT_SOFTWARE)


def wait_for_parent(pid: int, between: int) -> None:
    """Wait until that process is the parent, once `between` ended; ends this one where another is."""
    while (parent := os.getppid()) != pid:
        if parent != between:
            os._exit(EXIT_AGAIN)
        time.sleep(0.0002)


def show_as(arguments: list[str]) -> None:
    """Have `ps` and /proc/PID/cmdline show these arguments, as far as there is room for them."""
    with open("/proc/self/stat", "rb") as stream:  # noqa: PTH123
        text = stream.read()
    fields = text[text.rindex(b")") + 2 :].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    shown = b"\0".join(map(os.fsencode, arguments))[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def main() -> NoReturn:
    """Load by task, fork in between."""
    control = socket.socket(fileno=int(os.environ.pop(CONTROL_VARIABLE)))
    control.set_inheritable(False)
    run_worker(load, many=True, beside=(control.fileno(), Forks(control).serve))


if __name__ == "__main__":
    main()
