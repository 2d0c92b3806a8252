"""Build workers that come to grief on a chosen file, a chosen number of times, each in a way of its own."""

from __future__ import annotations

from pathlib import Path

from support.sites import write_site

# Runs at the start of every Python that finds it on its path. A build worker that begins to encode a file
# which a `<verb>-<stem>` beside this one is for does it, and counts down what that file says.
_SITE = """
import os, signal, sys, time

HERE = os.path.dirname(__file__)

def allocate(mib):
    held = bytearray(b"x") * (mib << 20)
    time.sleep(60 if held else 0)

VERBS = {
    "fat": lambda mib: allocate(mib),
    "die": lambda signum: os.kill(os.getpid(), signum),
    "refuse": lambda _: (_ for _ in ()).throw(MemoryError("no")),
    "full": lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")),
}

def strike(stem):
    for name in os.listdir(HERE):
        verb, _, meant = name.partition("-")
        if meant != stem or verb not in VERBS:
            continue
        path = os.path.join(HERE, name)
        with open(path) as file:
            times, number = map(int, file.read().split())
        if times:
            with open(path, "w") as file:
                file.write(f"{times - 1} {number}")
            VERBS[verb](number)

if "stoker.shards.build.build_worker" in sys.orig_argv[1:4]:
    from stoker.kit.workers.child import Report
    receive, say = Report.receive, Report.__call__
    given = {}
    def receiving(report, *arguments, **named):
        task = receive(report, *arguments, **named)
        if task and "source" in task:
            given["stem"] = os.path.basename(task["source"]["path"]).removesuffix(".parquet")
            with open(os.path.join(HERE, "tried"), "a") as file:
                file.write(f"{given['stem']} {task['read_rows']} {os.getpid()}\\n")
        return task
    def saying(report, kind, **fields):
        say(report, kind, **fields)
        if fields.get("phase") == "encode":
            strike(given.get("stem"))
    Report.receive, Report.__call__ = receiving, saying
"""


class Mischief:
    """Plans in a directory that is to be on PYTHONPATH, and what came of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        write_site(directory, _SITE)

    def plan(self, verb: str, stem: str, number: int = 0, *, times: int = 1) -> None:
        """`fat`: hold so many MiB; `die`: by that signal; `refuse`: a MemoryError; `full`: ENOSPC."""
        (self.directory / f"{verb}-{stem}").write_text(f"{times} {number}")

    def tries(self, stem: str) -> list[tuple[int, int]]:
        """Rows a batch and worker's pid of each build that was begun of the file."""
        file = self.directory / "tried"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(rows), int(pid)) for each, rows, pid in map(str.split, lines) if each == stem]
