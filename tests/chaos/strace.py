"""Dying inside a system call, without hooks in the product: strace kills at the nth one it sees."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

# One libc call is another system call on another machine; the question mark passes over those it lacks.
_CALLS = {
    "fsync": "?fsync,?fdatasync",
    "fdatasync": "?fdatasync",
    "rename": "?rename,?renameat,?renameat2",
    "link": "?link,?linkat",
    "unlink": "?unlink,?unlinkat",
    "mkdir": "?mkdir,?mkdirat",
    "truncate": "?truncate,?ftruncate",
    "write": "?write,?pwrite64,?writev,?pwritev",
}
_KILLED = re.compile(r"^(?:\d+ +)?(?:<\.\.\. )?(\w+)(?: resumed>)?\(?(.*)\) += \?$", re.MULTILINE)
_PATH = re.compile(r'<([^>]+)>|"([^"]+)"')


def is_here() -> bool:
    """Whether this machine has strace."""
    return shutil.which("strace") is not None


def killing(command: list[str], call: str, when: int, log: Path) -> list[str]:
    """The command, killed with -9 at the start of the `when`th such call that any process of it makes."""
    calls = _CALLS[call]
    return [
        *("strace", "-f", "-q", "-y", "-o", str(log), "-e", "signal=none", "-e", f"trace={calls}"),
        *("-e", f"inject={calls}:signal=KILL:when={when}", "--", *command),
    ]


def attached(pid: int | str, call: str, when: int, log: Path, *, follow: bool = True) -> list[str]:
    """A command that kills a process that runs already at its `when`th such call from now on.

    With `follow` so are its threads and what it starts, each counted by itself.
    """
    calls = _CALLS[call]
    return [
        *("strace", *(["-f"] if follow else []), "-q", "-y", "-o", str(log), "-e", "signal=none"),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={when}", "-p", str(pid)),
    ]


def let_go(tracer: subprocess.Popen[bytes]) -> None:
    """End an attached strace: what it traced goes on. Where that died by its hand it may not hear a TERM."""
    tracer.terminate()
    try:
        tracer.wait(2)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait(20)


def where_killed(log: Path) -> tuple[str, str] | None:
    """The call and the file it was made on when the kill came; None if it never came."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return None
    found = _KILLED.findall(text)
    if not found:
        return None
    call, arguments = found[-1]
    paths = _PATH.findall(arguments)
    return call, next((a or b for a, b in paths), "")
