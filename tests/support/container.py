"""A container without a container engine: this machine's file system, read-only, in namespaces of its own.

The command is process 1 there, as a user without a name or any capability. Only root can make one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.process import ProcessId, children_tree, signal_process
from support.waiting import LONG_S, wait_until

USER = 12345
NAMESPACES = ("--pid", "--mount", "--uts", "--ipc")

BEGIN = r"""
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs -o mode=755 none {lab}
mkdir {lab}/up {lab}/work {lab}/root
mount -t overlay overlay -o lowerdir=/,upperdir={lab}/up,workdir={lab}/work {lab}/root
cd {lab}/root
mkdir -p proc dev run tmp
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=755 none run
mount -t tmpfs -o mode=1777 none tmp
mkdir -p ./{disk}
mount -t tmpfs -o mode=750,uid={user},gid={user} none ./{disk}
cp -r --preserve=mode,timestamps,links {disk}/. ./{disk}
chown -R {user}:{user} ./{disk}
{look}
chmod a+x {reachable}
mount -o remount,ro {lab}/root
exec chroot . setpriv --reuid={user} --regid={user} --clear-groups --bounding-set=-all --no-new-privs \
    env -u HOME -u USER -u LOGNAME {command}
"""


@dataclass
class Container:
    """A running one."""

    outer: subprocess.Popen[bytes]
    first: ProcessId  # process 1, as it is known outside

    def inside(self, *command: str) -> str:
        """What a command printed that was started in it, as `docker exec` does."""
        enter = ["nsenter", f"--target={self.first.pid}", "--pid", "--mount", "--root", "--wd"]
        drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        done = subprocess.run([*enter, *drop, *command], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def path(self, inside: Path) -> Path:
        """Where a file of it is seen from outside."""
        return Path(f"/proc/{self.first.pid}/root{inside}")

    def everyone(self) -> list[ProcessId]:
        return children_tree(self.outer.pid)

    def ended(self) -> bool:
        return self.outer.poll() is not None

    def signal(self, signum: int) -> None:
        signal_process(self.first, signum)


@contextmanager
def contained(
    home: Path, lab: Path, command: Sequence[str], *, sees: Sequence[Path] = (), printed: Path
) -> Iterator[Container]:
    """Runs the command with a copy of `home` in memory as its one disk; it also reads what lies in `sees`.

    `lab` is an empty directory, hidden afterwards.
    """
    checkout = Path(sys.prefix).parent
    sees = [*sees, *([checkout] if checkout.is_relative_to("/tmp") else [])]
    looked = "; ".join(
        f"mkdir -p .{one}; mount --rbind {one} .{one}; mount -o remount,ro,bind .{one}" for one in sees
    )
    used = [Path(command[0]), Path(command[0]).resolve(), Path(os.__file__), home, *sees]
    above = {folder for path in used for folder in path.parents if folder != Path("/")}
    # What lies in `sees` is mounted read-only: it keeps its modes.
    reachable = {f".{folder}" for folder in above if not any(folder.is_relative_to(one) for one in sees)}
    script = BEGIN.format(
        lab=lab, disk=home, user=USER, look=looked or ":",
        reachable=shlex.join(sorted(reachable)), command=shlex.join(command),
    )  # fmt: skip
    with printed.open("ab") as stream:
        outer = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", "-c", script],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
        )  # fmt: skip
    try:
        wait_until(lambda: _is(outer, command[0]), LONG_S, "the container's process 1")
        (pid,) = _children(outer)
        yield Container(outer, ProcessId.of(pid))
    finally:
        outer.kill()
        outer.wait(LONG_S)


def missing() -> str | None:
    """Why none can be had on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [tool for tool in ("unshare", "nsenter", "setpriv") if shutil.which(tool) is None]
    if lacking:
        return f"needs {', '.join(lacking)}"
    trial = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, check=False)
    return None if trial.returncode == 0 else f"cannot make namespaces: {trial.stderr.decode().strip()}"


def _children(outer: subprocess.Popen[bytes]) -> list[int]:
    return list(map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()))


def _is(outer: subprocess.Popen[bytes], program: str) -> bool:
    assert outer.poll() is None, "the container did not start"
    words = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in _children(outer)]
    return any(program.encode() in found[:2] for found in words)
