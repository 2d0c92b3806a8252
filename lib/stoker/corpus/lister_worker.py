"""Worker that stays: looks at a source folder, or at hot, whenever asked. Standard library only.

It stands between its daemon and a file system that may be dead: only this process ever waits for it.

task: {"role": "folder", "root", "include": [...], "exclude": [...]}
   or {"role": "hot", "hot", "dataset", "owner", "expected"}: it then also holds hot's owner lock for its
       life; `expected` is how many sources have something there by the records
input, a line a look: {"look": n}
messages: {"kind": "ready"}, once, as the first; {"kind": "alive"} while it waits;
    for a folder, as often as needed, {"kind": "files", "look": n, "files": [[path, size, mtime_ns, inode]]},
        then {"kind": "looked", "look": n, "missing", "refused": [[path, reason]], "unreadable": [...]};
    for hot {"kind": "hot", "look": n, "parquet", "building", "published", "temporaries"}
Exits 75 when another pipeline owns hot, 69 when what is there is not the hot directory that was owned before:
an unmounted disk leaves an empty folder, which is no reason to think everything lost and build it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.corpus.folder import FileSeen, Refused, Selection, look_through
from stoker.corpus.hot import look_at_hot
from stoker.kit.lock import Lock, read_holder
from stoker.kit.worker_main import InputClosed, Report, run_worker
from stoker.store.errors import LockHeld, UnavailableError
from stoker.store.files import make_dir
from stoker.store.layout import HotLayout

_ALIVE_EVERY_S = 5.0
_FILES_A_MESSAGE = 500  # well below a message's limit, whatever the length of the names
_PREDECESSOR_LEAVES_S = 5.0  # a killed daemon's lister ends by its death signal, a moment later


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Answer looks until the daemon closes the pipe or asks to stop."""
    look = _folder_look(task, report) if task["role"] == "folder" else _hot_look(task, report)
    report("ready")
    looks = 0
    for number in _requests(report):
        look(number)
        looks += 1
    return {"looks": looks}


def _requests(report: Report) -> Iterator[int]:
    while not report.stopping:
        try:
            message = report.receive(timeout_s=_ALIVE_EVERY_S)
        except InputClosed:
            return
        if message is None:
            report("alive")
        else:
            yield int(message["look"])


def _folder_look(task: dict[str, Any], report: Report) -> Callable[[int], None]:
    selection = Selection(task["include"], task["exclude"])

    def look(number: int) -> None:
        files: list[list[Any]] = []
        refused: list[list[str]] = []
        unreadable: list[list[str]] = []
        missing = False
        try:
            for found in look_through(Path(task["root"]), selection, lambda: report("alive")):
                if isinstance(found, FileSeen):
                    files.append([found.path, found.size, found.mtime_ns, found.inode])
                elif isinstance(found, Refused):
                    refused.append([found.path, found.reason])
                else:
                    unreadable.append([found.path, found.reason])
                if len(files) == _FILES_A_MESSAGE:
                    report("files", look=number, files=files)
                    files = []
        except (FileNotFoundError, NotADirectoryError):
            missing = True
        except OSError as error:
            unreadable.append(["", error.strerror or str(error)])
        report("files", look=number, files=files)
        report("looked", look=number, missing=missing, refused=refused, unreadable=unreadable)

    return look


def _hot_look(task: dict[str, Any], report: Report) -> Callable[[int], None]:
    hot = HotLayout(Path(task["hot"]))
    if task["expected"] and not hot.owner_lock.exists():
        raise _elsewhere(hot)
    make_dir(Path(task["hot"]))
    lock = _own(hot, task["owner"])

    def look(number: int) -> None:
        try:
            ours = os.path.samestat(os.fstat(lock.fileno()), hot.owner_lock.stat())
        except FileNotFoundError:
            ours = False
        if not ours:
            raise _elsewhere(hot)
        report("hot", look=number, **asdict(look_at_hot(hot, task["dataset"])))

    return look


def _elsewhere(hot: HotLayout) -> UnavailableError:
    return UnavailableError(
        f"{hot.hot} is not the hot directory that was used before: {hot.owner_lock.name} is not there or is "
        f"another; mount the disk, or, if what it held is lost, `touch {hot.owner_lock}`: it is built again"
    )


def _own(hot: HotLayout, owner: str) -> Lock:
    deadline = time.monotonic() + _PREDECESSOR_LEAVES_S
    while True:
        try:
            return Lock.acquire(hot.owner_lock, purpose=owner)
        except LockHeld as error:
            holder = read_holder(hot.owner_lock)
            ours = holder is None or holder.purpose == owner
            if not ours or time.monotonic() > deadline:
                raise LockHeld(
                    f"{error}; the hot directory {hot.hot} is that pipeline's: give this one another `hot:`"
                ) from error
        time.sleep(0.1)


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
