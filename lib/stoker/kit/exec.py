"""Ties children to their parent: `python -m stoker.kit.exec PPID SIGNAL DIRECTORY -- CMD...` starts one.

The program asks for SIGNAL at the end of its parent, checks that PPID is still the parent, then becomes CMD,
in DIRECTORY unless that is empty. The parent enters no directory itself: its disk may hang. A module of ours
runs in this interpreter, because a second start would cost a worker a fifth of its own.
Exit codes before CMD runs: 64 usage, 75 the parent is gone, 126 not executable, 127 not found. This module
imports little because it is the first to run in every child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Mapping

USAGE = "usage: python -m stoker.kit.exec PPID SIGNAL DIRECTORY -- CMD [ARGUMENT...]"
PYTHON_MODULE = [sys.executable, "-P", "-m"]
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER = 36
TRAINER_OUTPUT = "STOKER_TRAINER_OUTPUT"  # the descriptors that a trainer's stdout and stderr are passed to
MEMORY_SHORT_FIRST = 200  # of 1000: how much sooner the OOM killer takes a trainer or worker than its daemon
# Variables that whoever starts a daemon sets for it, not for its children.
DAEMON_VARIABLES = {
    TRAINER_OUTPUT,
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
}


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {argument}): {os.strerror(code)}")


def set_death_signal(signum: int) -> None:
    """Asks the kernel for this signal when the thread that created this process ends.

    The setting survives exec, not fork. The parent may have ended before the call: compare os.getppid() with
    the expected parent afterwards.
    """
    _prctl(PR_SET_PDEATHSIG, signum)


def set_child_subreaper() -> None:
    """Makes this process the parent of every descendant whose own parent ends; the setting survives exec."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_first_when_memory_is_short(pid: str = "self") -> None:
    """Raises the oom_score_adj of a process and what it will start: who is left tells what happened."""
    with contextlib.suppress(OSError):
        score = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        os.write(score, b"%d" % min(1000, int(os.read(score, 16)) + MEMORY_SHORT_FIRST))
        os.close(score)


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment for a child, without the daemon's own variables and with `extra`."""
    inherited = {name: value for name, value in os.environ.items() if name not in DAEMON_VARIABLES}
    return {**inherited, **(extra or {})}


def launch_command(
    command: list[str], death: signal.Signals = signal.SIGTERM, directory: str = ""
) -> list[str]:
    """Returns the command that starts `command` as a child of this process, through the exec launcher.

    The child gets the signal `death` when this process ends. -P: a file in the working directory must not
    replace a module.
    """
    return [*PYTHON_MODULE, "stoker.kit.exec", str(os.getpid()), str(death.value), directory, "--", *command]


def main(argv: list[str]) -> int:
    """Becomes the command; returns an exit code only when that fails."""
    if len(argv) < 5 or not argv[0].isdigit() or not argv[1].isdigit() or argv[3] != "--":
        print(USAGE, file=sys.stderr)
        return 64
    parent, directory, command = int(argv[0]), argv[2], argv[4:]
    set_death_signal(int(argv[1]))
    if os.getppid() != parent:  # the parent ended between fork and prctl: no signal would ever come
        print(f"stoker.kit.exec: parent {parent} is gone; not starting {command[0]}", file=sys.stderr)
        return 75
    if int(argv[1]) == signal.SIGKILL:  # a worker: its daemon explains its end and starts another
        end_first_when_memory_is_short()
    doing = f"enter {directory}"
    try:
        if directory:
            os.chdir(directory)
            os.environ["PWD"] = directory  # as a shell does: programs ask it
        doing = f"start {command[0]}"
        if command[:3] != PYTHON_MODULE or not command[3].startswith("stoker."):
            # Python ignores these two signals for itself, and an ignored signal stays ignored over exec.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        print(f"stoker.kit.exec: cannot {doing}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    sys.argv[1:] = command[4:]
    runpy.run_module(command[3], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
