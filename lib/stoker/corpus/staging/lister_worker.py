"""Resident worker: looks at a source folder, at hot or at warm on request. Standard library only.

It keeps its daemon apart from a file system that may be dead: only this process ever waits for that file
system.

task: {"role": "folder", "root", "include": [...], "exclude": [...], "state", "owner"}
   or {"role": "hot" | "warm", "root", "dataset", "owner", "expected"}: the worker then also holds the owner
       lock there for its life; `expected` is how many sources have files there by the records.
       `owner` is the text of this pipeline's owner locks
input, a line for each look: {"look": n}; for a disk also {"measure": n}
messages: {"kind": "ready"} once, first; {"kind": "alive"} while it waits;
    for a folder, as often as needed, {"kind": "files", "look": n,
        "files": [[path, size, mtime_ns, inode, ctime_ns]]},
        then {"kind": "looked", "look": n, "missing", "refused": [[path, reason]], "unreadable": [...],
        "unmanaged": [path] of some unfinished files of other clients, "unmanaged_in_all": their number,
        "polling": why the worker cannot announce changes between looks, empty where it can};
        {"kind": "changed"} once after a look, when another look may find a change;
    for a disk {"kind": "seen", "look": n, and the fields of Seen}, and after it, as to every
        measure, {"kind": "measured", "number": n, "disk": {device, total_bytes, free_bytes}, "writable",
        "owner": {path, device, inode}}
Exits 78 when the source folder and a directory that Stoker writes lie in one another, 75 when another
pipeline owns the disk, 69 when the directory is not the one that was owned before: an unmounted disk leaves
an empty folder, which must not make Stoker believe that every set is lost and must be built again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.config.places import SOURCE, overlaps
from stoker.corpus.source.folder import PassedOver, Selection, is_unfinished, look_through
from stoker.corpus.staging.disk_contents import look_at, measure
from stoker.kit.lock import Lock, read_contents, read_holder, still_named
from stoker.kit.loop import Watch
from stoker.kit.workers.child import ALIVE_EVERY_S, InputClosed, Report, paced, run_worker
from stoker.store.errors import ConfigError, LockHeld, UnavailableError
from stoker.store.files import make_dir
from stoker.store.layout import DISK_LOCK, HotLayout, WarmLayout

_UNMANAGED_SHOWN = 100
_PEEK_EVERY_S = 1.0  # at the root's inode: no event announces a mount over it or another folder in its place
_FILES_A_MESSAGE = 100  # below a message's size limit for the longest paths, even where each byte is escaped
_PREDECESSOR_LEAVES_S = 5.0  # a killed daemon's lister ends a moment later, by its death signal


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Answers requests until the daemon closes the pipe or asks the worker to stop."""
    alive = paced(lambda: report("alive"), ALIVE_EVERY_S)
    is_folder = task["role"] == "folder"
    place: Folder | OwnedDisk = Folder(task, report, alive) if is_folder else OwnedDisk(task, report)
    report("ready")
    with contextlib.suppress(InputClosed):
        while not report.stopping:
            asked = report.receive(timeout_s=_PEEK_EVERY_S)
            if asked is None:
                place.peek()
                alive()
            else:
                place.answer(asked)
    return {}


class Folder:
    """The source folder: looked through on request, watched in between."""

    def __init__(self, task: dict[str, Any], report: Report, alive: Callable[[], None]) -> None:
        self._root, self._report, self._alive = Path(task["root"]), report, alive
        self._state, self._owner = task["state"], task["owner"]
        self._selection = Selection(task["include"], task["exclude"])
        self._watch: Watch | None = None  # from the first look on
        self._is_looking = self._has_changed = self._is_reported = False

    def peek(self) -> None:
        """Reports a change that the watch does not report: another folder mounted over the root."""
        if self._watch is not None and self._watch.is_stale():
            self._has_changed = True
            self._report_change()

    def _heard(self, names: list[str]) -> None:
        """Runs in the watch's thread."""
        if not all(is_unfinished(name) for name in names):
            self._has_changed = True
            self._report_change()

    def _report_change(self) -> None:
        """Reports a change once between two looks; a change during a look is reported after it."""
        if self._has_changed and not (self._is_looking or self._is_reported):
            self._is_reported = True
            self._report("changed")

    def answer(self, asked: Mapping[str, Any]) -> None:
        number, missing, self._is_looking = asked["look"], False, True
        passed: dict[str, list[list[str]]] = {"refused": [], "unreadable": [], "unmanaged": []}
        self._insist_apart()
        if self._watch is None:
            self._watch = Watch(self._root, self._heard, tree=True)
        self._watch.renew()
        self._has_changed = self._is_reported = False
        try:
            self._look(number, passed)
        except (FileNotFoundError, NotADirectoryError):
            missing = True
        except OSError as error:
            passed["unreadable"].append(["", error.strerror or str(error)])
        unmanaged = sorted(path for path, _ in passed.pop("unmanaged"))
        about = {"unmanaged": unmanaged[:_UNMANAGED_SHOWN], "unmanaged_in_all": len(unmanaged)}
        self._report("looked", look=number, missing=missing, **passed, **about, polling=self._watch.polling)
        self._is_looking = False
        self._report_change()

    def _insist_apart(self) -> None:
        """Raises ConfigError where links lead into or around a directory of this pipeline.

        Hot and warm are recognised by their owner locks: paths on a dead mount would block this look.
        """
        real = Path(os.path.realpath(self._root))
        for key, fault in overlaps({"state": Path(os.path.realpath(self._state)), SOURCE: real}):
            raise ConfigError(f"{key}: {fault}")
        for folder in real.parents:
            if read_contents(folder / DISK_LOCK).purpose == self._owner:
                raise ConfigError(
                    f"dataset.source.path: {self._root} lies inside {folder}, which is hot or warm: Stoker "
                    "writes and cleans it; move the source elsewhere"
                )

    def _insist_not_ours(self, found: PassedOver) -> None:
        if found.path == ".":
            raise ConfigError(
                f"dataset.source.path: {self._root} is no source: {found.reason}; name another directory"
            )
        if read_contents(self._root / found.lock).purpose == self._owner:
            raise ConfigError(
                f"hot or warm: {self._root / found.path} lies inside dataset.source.path ({self._root}): "
                "Stoker would read what it wrote as new files; name a directory outside it"
            )

    def _look(self, number: int, passed: Mapping[str, list[list[str]]]) -> None:
        files: list[list[Any]] = []
        for found in look_through(self._root, self._selection, self._alive):
            if isinstance(found, PassedOver):
                if found.lock:
                    self._insist_not_ours(found)
                passed[found.kind].append([found.path, found.reason])
                continue
            files.append([found.path, found.size, found.mtime_ns, found.inode, found.ctime_ns])
            if len(files) == _FILES_A_MESSAGE:
                self._report("files", look=number, files=files)
                files = []
        self._report("files", look=number, files=files)


class OwnedDisk:
    """Hot or warm, owned through its lock; ends the worker when another directory is in its place."""

    def __init__(self, task: dict[str, Any], report: Report) -> None:
        self._role, self._root, self._dataset = task["role"], Path(task["root"]), task["dataset"]
        self._report = report
        self._layout = (HotLayout if self._role == "hot" else WarmLayout)(self._root)
        self._lock_file = self._layout.owner_lock
        if task["expected"] and not self._lock_file.exists():
            raise self._elsewhere()
        make_dir(self._root)
        self._lock = self._own(task["owner"])

    def peek(self) -> None:
        """Nothing is watched between requests."""

    def answer(self, asked: Mapping[str, Any]) -> None:
        """Reports the disk's contents if asked for them, and its free space."""
        if not still_named(self._lock_file, self._lock):
            raise self._elsewhere()
        if "look" in asked:
            self._report("seen", look=asked["look"], **asdict(look_at(self._layout, self._dataset)))
        disk, writable = measure(self._root)
        number = asked.get("measure", asked.get("look"))
        # Other workers recognise this very disk by the mark if another disk is mounted in its place.
        held = os.fstat(self._lock)
        owner = {"path": str(self._lock_file), "device": held.st_dev, "inode": held.st_ino}
        self._report("measured", number=number, disk=asdict(disk), writable=writable, owner=owner)

    def _elsewhere(self) -> UnavailableError:
        lock = self._lock_file
        return UnavailableError(
            f"{self._root} is not the {self._role} directory that was used before: {lock.name} is not there "
            f"or is another; mount the disk, or, if what it held is lost, "
            f"`mkdir -p {self._root}; touch {lock}`: it is made again"
        )

    def _own(self, owner: str) -> int:
        """Takes the owner lock; returns its descriptor, which stays open for the worker's life."""
        deadline = time.monotonic() + _PREDECESSOR_LEAVES_S
        while True:
            try:
                if not measure(self._root)[1]:
                    return self._own_read_only()
                self._held = Lock.acquire(self._lock_file, purpose=owner)
                return self._held.fileno()
            except LockHeld as error:
                holder = read_holder(self._lock_file)
                ours = holder is None or holder.purpose == owner
                if not ours or time.monotonic() > deadline:
                    raise LockHeld(
                        f"{error}; the {self._role} directory {self._root} is that pipeline's: "
                        f"give this one another `{self._role}:`"
                    ) from error
            time.sleep(0.1)

    def _own_read_only(self) -> int:
        """Locks a disk that is mounted read-only, to read from; the text in its lock file stays."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeld(f"{self._lock_file} is held") from error
        except OSError as error:
            raise UnavailableError(
                f"{self._root}: {os.strerror(errno.EROFS)}, and {self._lock_file.name}: {error.strerror}; "
                "remount it writable"
            ) from error
        return descriptor


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
