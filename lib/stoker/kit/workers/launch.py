"""Starts a worker's process: its command, its environment, its error where the system has no room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping

from stoker.kit.workers.child import PARENT_VARIABLE
from stoker.store.errors import Transient

# The system has no room for another process or its pipes: limits on processes, memory or descriptors.
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# Workers scale by processes; numpy's thread pool, which no worker uses, doubles the time to load numpy.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
POOL_VARIABLE = "STOKER_CREW"  # names the pool, so that its workers are found after their daemon died
# Variables that the service manager sets for the daemon, not for its children.
DAEMON_VARIABLES = {
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
}


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment for a child, without the daemon's own variables and with `extra`."""
    inherited = {name: value for name, value in os.environ.items() if name not in DAEMON_VARIABLES}
    return {**inherited, **(extra or {})}


def launch_command(command: list[str]) -> list[str]:
    """Returns the command that starts `command` as a child of this process, through the exec launcher.

    -P: a file in the working directory must not replace a module.
    """
    return [sys.executable, "-P", "-m", "stoker.kit.exec", str(os.getpid()), "--", *command]


class WorkerNotStarted(Transient):
    """The system has no room for another process now."""


def launch(module: str, name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts `python -m module` with three pipes, as a worker of this process."""
    try:
        return subprocess.Popen(
            launch_command([sys.executable, "-P", "-m", module]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=child_environment({**ONE_THREAD, **environ, PARENT_VARIABLE: str(os.getpid())}),
            process_group=0,  # the daemon handles Ctrl-C; and a kill of the group ends the worker's helpers
        )
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise WorkerNotStarted(
            f"no process can be started for {name}: {error.strerror}; end others, or raise the limit "
            "on processes (TasksMax=, ulimit -u), memory or open files"
        ) from error
