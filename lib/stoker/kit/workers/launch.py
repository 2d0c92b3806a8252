"""How a worker's process is started: its command, its environment, what is said where there is no room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping

from stoker.kit.workers.child import PARENT_VARIABLE
from stoker.store.errors import Transient

# Where there is no room for one more process or its pipes: limits on them, memory, descriptors.
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# Workers scale by processes; numpy's pool of threads, which none of them uses, doubles what loading it takes.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
POOL_VARIABLE = "STOKER_CREW"  # whose process it is, so that it is found when its daemon died
# What the service manager tells the daemon is not for its children.
DAEMON_VARIABLES = {
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
}


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment for a child: without what only the daemon may answer, plus `extra`."""
    inherited = {name: value for name, value in os.environ.items() if name not in DAEMON_VARIABLES}
    return {**inherited, **(extra or {})}


def launch_command(command: list[str]) -> list[str]:
    """The command as a child of this process must be started: through the exec launcher.

    -P: a file in the working directory must not stand in for a module.
    """
    return [sys.executable, "-P", "-m", "stoker.kit.exec", str(os.getpid()), "--", *command]


class WorkerNotStarted(Transient):
    """The system has no room for another process now."""


def launch(module: str, name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `python -m module` with three pipes, as a worker of this process."""
    try:
        return subprocess.Popen(
            launch_command([sys.executable, "-P", "-m", module]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=child_environment({**ONE_THREAD, **environ, PARENT_VARIABLE: str(os.getpid())}),
            process_group=0,  # Ctrl-C is the daemon's to handle; and its helpers are killed with it
        )
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise WorkerNotStarted(
            f"no process can be started for {name}: {error.strerror}; end others, or raise the limit "
            "on processes (TasksMax=, ulimit -u), memory or open files"
        ) from error
