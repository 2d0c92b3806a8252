"""A fork server as its daemon holds it: a warm worker that, while it has no task, forks other workers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any

from stoker.kit.poll import readable
from stoker.kit.prctl import set_child_subreaper
from stoker.kit.worker import Worker
from stoker.kit.worker_launch import CREW_VARIABLE, room_for
from stoker.kit.worker_main import CONTROL_VARIABLE, PACKET_BYTES
from stoker.store.parsing import parse_json

FORK_SERVER = "stoker.kit.fork_worker"
ANSWER_S = 2.0  # a fork takes it some milliseconds
# Room for the names of its workers, which stand where its own arguments did, and words for whoever sees it.
_WORDS = ("forks", "the", "workers", "of", "a", "Stoker", "daemon")


@dataclass
class Forked:
    """A forked worker's process and this end of its pipes, as subprocess.Popen has them."""

    pid: int
    stdin: FileIO
    stdout: FileIO
    stderr: FileIO
    returncode: int | None = None


class ForkServer(Worker):
    """A worker of the module FORK_SERVER; see there for its tasks."""

    crew: str  # whose it is, by its environment
    _control: socket.socket
    _answers = True

    @classmethod
    def launch(
        cls, task: Mapping[str, Any] | None, *, name: str, environ: Mapping[str, str], **bounds: Any
    ) -> ForkServer:
        """Start one; from now on this process is the parent of whatever its children leave behind."""
        set_child_subreaper()
        with room_for(name):
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            server = cls.start(
                FORK_SERVER,
                task,
                name=name,
                deadline_s=None,
                environ={**environ, CONTROL_VARIABLE: str(far.fileno())},
                pass_fds=(far.fileno(),),
                arguments=_WORDS,
                keep_open=True,
                **bounds,
            )
        server.crew, server._control = environ.get(CREW_VARIABLE, ""), near
        return server

    def fork(self, module: str) -> Forked | None:
        """A process that serves the module's tasks, as Worker.start takes it; None where none came.

        Raises OSError where there is no room for its pipes.
        """
        assert not self.at_work, "it loads something"
        request = {"module": module, "parent": os.getpid()}
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            read, stdin = _pipe(theirs, ours)
            stdout, write = _pipe(ours, theirs)
            stderr, errors = _pipe(ours, theirs)
            pid = self._ask(request, [each.fileno() for each in (read, write, errors)])
            if pid is None:
                return None
            ours.pop_all()
            return Forked(pid, stdin, stdout, stderr)

    def _ask(self, request: Mapping[str, Any], descriptors: list[int]) -> int | None:
        answer: dict[str, Any] = {}
        if not self._answers:
            return None
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            if readable(self._control.fileno(), timeout_s=ANSWER_S):
                answer = parse_json(self._control.recv(PACKET_BYTES) or b"{}")
        except OSError:
            answer = {}  # it ended
        if not answer:  # dead, or halted: what it may still fork finds its input closed
            self._answers = False
            self.ask_to_stop(0)
        return answer.get("pid")


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    read, write = os.pipe2(os.O_CLOEXEC)
    return reader.enter_context(FileIO(read, "r")), writer.enter_context(FileIO(write, "w"))


def reap_adopted(known: Collection[int]) -> None:
    """Reap an ended child that nobody here waits for, as a fork server that died untold may leave one."""
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_pid not in known:
            os.waitpid(ended.si_pid, os.WNOHANG)
