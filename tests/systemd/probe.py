"""Runs as a service of Stoker's kind, and says in JSON what the sandbox lets it do.

A call gives "ok" or the name of its error.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

AT_ROOT = ("/etc/x", "/usr/x", "/opt/stoker/x", "/home/x", "/var/lib/x", "/srv/fast/x", "/sys/x", "/boot/x")


def _write(path: str) -> None:
    Path(path).write_text("x")


def _direct(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as page:
        os.write(descriptor, page)


def _fork_server() -> None:
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    process.start()
    process.join()
    assert process.exitcode == 0


def _inotify() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.inotify_add_watch(libc.inotify_init1(0), b"/var/lib", 0x100) < 0:
        raise OSError(ctypes.get_errno(), "inotify")


def _unshare() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0:  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "unshare")


def _train() -> None:
    import torch

    torch.nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()


def _compile(directory: Path) -> None:
    """What a trainer with compiled blocks does: a compiler makes a library, which is then executed."""
    directory.mkdir()
    source, library = directory / "two.cpp", directory / "two.so"
    source.write_text('extern "C" int two() { return 2; }')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    assert ctypes.CDLL(str(library)).two() == 2


def _shared(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    directory.chmod(0o2770)
    assert directory.stat().st_mode & 0o2000


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def main(state: Path) -> None:
    idle = psutil.IOPRIO_CLASS_IDLE
    memory = Path("/proc/self/oom_score_adj")
    found = {f"write {path}": outcome(lambda path=path: _write(path)) for path in AT_ROOT} | {
        "write state": outcome(lambda: _write(str(state / "x"))),
        "shared directory": outcome(lambda: _shared(state / "requests")),
        "direct": outcome(lambda: _direct(state / "direct")),
        "fork server": outcome(_fork_server),
        "niceness": outcome(lambda: os.setpriority(os.PRIO_PROCESS, 0, 10)),
        "idle I/O": outcome(lambda: psutil.Process().ionice(idle)),
        "memfd": outcome(lambda: os.memfd_create("x")),
        "pidfd": outcome(lambda: os.pidfd_open(os.getpid())),
        "affinity": outcome(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0))),
        "inotify": outcome(_inotify),
        "pressure": outcome(lambda: Path("/proc/pressure/memory").read_text()),
        "oom score": outcome(lambda: memory.write_text(str(int(memory.read_text()) + 1))),
        "train": outcome(_train),
        "compile": outcome(lambda: _compile(state / "compiled")),
        "netlink": outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()),
        "packet": outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)),
        "unshare": outcome(_unshare),
        "chown": outcome(lambda: os.chown(state / "x", os.getuid(), os.getgid())),
        "log of the kernel": outcome(lambda: os.open("/dev/kmsg", os.O_RDONLY)),
    }
    (state / "probe.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
