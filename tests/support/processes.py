"""Real processes in tests: a daemon that is awaited until READY, and ways to end what a test started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.process import ProcessId, children_tree, signal_process
from stoker.kit.workers.parent import KILL_WAIT_S, Worker, WorkerExit
from support.waiting import LONG_S, wait_until

# For what has been told that it ended well: the time to vanish, far less than any stop time.
ENDING_S = 10.0
READY = b"event=daemon_ready"  # in the log of a daemon that has started


def stop_worker(worker: Worker, grace_s: float) -> WorkerExit | None:
    """Ask a worker to stop, await its end."""
    worker.ask_to_stop(grace_s)
    return worker.wait(time.monotonic() + grace_s + KILL_WAIT_S)


@dataclass
class RunningDaemon:
    """A daemon under test; its standard error goes to a file."""

    process: subprocess.Popen[bytes]
    errors: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        """What it wrote to standard error so far."""
        return self.errors.read_text(errors="replace")

    def rss_bytes(self) -> int:
        """Its resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self, timeout_s: float = LONG_S) -> int:
        """TERM and wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """kill -9, and reap."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONG_S)


def daemon_command(name: str, file: Path, *options: str) -> list[str]:
    """The command line of a daemon by its module name, as its console script runs it."""
    code = f"import sys; from stokerd.{name} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", code, str(file), *options]


def start_daemon(
    command: Sequence[str],
    errors: Path,
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = LONG_S,
) -> RunningDaemon:
    """Start a daemon and return once it is ready; fails with its words when it ends or stays silent."""
    with errors.open("ab") as stream:
        before = stream.tell()
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **(environ or {})},
        )
    daemon = RunningDaemon(process, errors)

    def is_ready() -> bool:
        return READY in errors.read_bytes()[before:]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: is_ready() or process.poll() is not None, timeout_s, "READY")
    if not is_ready():
        kill_tree(process.pid)
        code = process.wait(LONG_S)
        raise AssertionError(f"{command[-1]}: not READY but exit code {code}; it said:\n{daemon.said()}")
    return daemon


def kill_tree(pid: int) -> None:
    """kill -9 a process and all its descendants, whatever their sessions."""
    tree = children_tree(pid)
    with contextlib.suppress(ProcessLookupError):
        tree.insert(0, ProcessId.of(pid))
    for process in tree:
        signal_process(process, signal.SIGKILL)


def wait_gone(processes: Sequence[ProcessId], timeout_s: float = LONG_S) -> None:
    """Wait until none of these processes lives."""
    wait_until(lambda: not any(p.alive() for p in processes), timeout_s, "the end of every process")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
