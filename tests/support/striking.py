"""Kills with -9 inside a chosen system call of a chosen worker, from a chosen point of its work on.

A process that is to be struck attaches strace to itself there: at its start, at each task it is given, or
when it tells a phase. From outside one would come too late, and a worker that is kept for several files is
not started again for the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from chaos import strace
from support.processes import has_ended
from support.sites import write_site
from support.waiting import wait_until

_SITE = """
import ctypes, json, os, subprocess, sys, time

def strike(point):
    here = os.path.dirname(__file__)
    waiting = os.path.join(here, "strike.json")
    try:
        with open(waiting) as file:
            given = json.load(file)
        if given["module"] not in " ".join(sys.orig_argv[1:4]) or given["point"] != point:
            return
        os.rename(waiting, os.path.join(here, "taken.json"))
        with open(os.path.join(here, "taker"), "w") as file:
            file.write(" ".join(sys.orig_argv[1:4]))
    except (FileNotFoundError, ValueError):
        return
    # PR_SET_PTRACER, anybody: where Yama guards, only a parent might attach.
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_long(-1), 0, 0, 0)
    words = [word.replace("{pid}", str(os.getpid())) for word in given["command"]]
    quiet = subprocess.DEVNULL
    tracer = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    with open(os.path.join(here, f"tracer-{tracer.pid}"), "w"):
        pass
    deadline = time.monotonic() + 20
    while "TracerPid:\\t0\\n" in open("/proc/self/status").read() and time.monotonic() < deadline:
        time.sleep(0.001)

def strike_before(owner, method, point):
    whole = getattr(owner, method)
    def struck(*arguments, **named):
        strike(point(*arguments, **named))
        return whole(*arguments, **named)
    setattr(owner, method, struck)

if "_worker" in " ".join(sys.orig_argv[1:4]):
    from stoker.kit.workers.child import Report
    strike_before(Report, "__call__", lambda report, kind, **fields: fields.get("phase", kind))
    strike_before(Report, "receive", lambda report, **named: "task")
strike("start")
"""


@dataclass(frozen=True)
class Blow:
    """To die at the `when`th such call from `point` on: start, task, or a phase or message it tells."""

    module: str
    point: str
    call: str
    when: int


class Striker:
    """One blow at a time for all the processes that were started with `environ`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        write_site(directory, _SITE)
        paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environ = {"PYTHONPATH": os.pathsep.join(paths)}

    def aim(self, blow: Blow, log: Path) -> None:
        """Have the next process that comes to the blow's point take it."""
        self.forget()
        follow = "_worker" in blow.module  # its threads; a daemon's children are not meant
        command = strace.attached("{pid}", blow.call, blow.when, log, follow=follow)
        fresh = self._directory / "new.json"
        fresh.write_text(json.dumps({"module": blow.module, "point": blow.point, "command": command}))
        fresh.rename(self._directory / "strike.json")

    def forget(self) -> None:
        """Take the blow back, also from who goes on under strace; and clear the way for the next."""
        for file in self._directory.glob("tracer-*"):
            _end_tracer(int(file.name.removeprefix("tracer-")))
            file.unlink()
        for name in ("strike.json", "taken.json", "taker"):
            (self._directory / name).unlink(missing_ok=True)

    @property
    def taken(self) -> bool:
        """Whether a process has come to the point and goes on under strace."""
        return (self._directory / "taken.json").exists()

    @property
    def taker(self) -> str:
        """The name of the worker that took the last blow; empty where no worker did."""
        try:
            found = re.search(r"\.(\w+)_worker", (self._directory / "taker").read_text())
        except FileNotFoundError:
            return ""
        return found[1] if found else ""


def _end_tracer(pid: int) -> None:
    """Have a strace let go of its process, which goes on, and be gone."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, AssertionError):
            if b"strace" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                return  # a zombie has no words, and a number may be another's by now
            os.kill(pid, signum)
            wait_until(lambda: has_ended(pid), 5.0, "the end of a tracer")
            return
