"""Watches a directory or a whole tree: by inotify where that works, else by comparing inode and times.

A swapped or removed directory ends inotify in silence, so every check compares the inode first. An event only
means "look now": the reader decides by the files that it then finds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.config.places import on_network

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

Signature = tuple[int, int, int]  # device, inode, mtime in ns: a new or removed entry changes the mtime
_LIMITS = {
    errno.ENOSPC: "all inotify watches are taken (raise fs.inotify.max_user_watches)",
    errno.EMFILE: "all inotify instances are taken (raise fs.inotify.max_user_instances)",
}


class Watch:
    """Calls `changed` (from another thread) with the names of entries that changed.

    A change is an entry created, removed, moved or closed after writing; with `tree` anywhere below the
    directory. `polling` says why changes are found only by checks of the directory; it is empty where inotify
    reports them.
    """

    def __init__(self, directory: Path, changed: Callable[[list[str]], None], *, tree: bool = False) -> None:
        self.directory, self._changed, self._tree = directory, changed, tree
        self._observer: BaseObserver | None = None
        self._seen: Signature | None = None
        self.polling = ""
        self.renew()

    @property
    def armed(self) -> bool:
        """Returns whether inotify reports changes; without inotify renew() must be called often."""
        return self._observer is not None and all(emitter.is_alive() for emitter in self._observer.emitters)

    def is_stale(self) -> bool:
        """Returns whether a change may be unreported: directory replaced, or inotify not reporting."""
        now = _signature(self.directory)
        if self.armed:
            return now is None or self._seen is None or now[:2] != self._seen[:2]
        return self._observer is not None or now != self._seen

    def renew(self) -> bool:
        """Watches the directory that exists now; returns whether a change may be unreported."""
        now, is_stale = (
            _signature(self.directory),
            self.is_stale(),
        )  # the next check finds changes in between
        if is_stale or not self.armed:
            self.close()
            self._seen = now
            self._arm()
        self._seen = now
        return is_stale

    def close(self) -> None:
        """Ends the watching threads."""
        if self._observer is not None:
            observer, self._observer = self._observer, None
            observer.stop()
            observer.join(1.0)

    def _arm(self) -> None:
        self.polling = ""
        if self._seen is None:
            self.polling = "it is not there"
        elif self._tree and (kind := on_network(self.directory)):
            self.polling = f"{kind} does not tell of what other machines write"
        else:
            try:
                self._observer = self._observe()
            except OSError as error:
                self.polling = _LIMITS.get(error.errno or 0, error.strerror or str(error))

    def _observe(self) -> BaseObserver:
        """Makes inotify report the directory; a failure raises OSError and leaves no thread or descriptor."""
        # Imported late because a daemon says READY before it needs inotify; and only inotify, not the
        # observers of other platforms.
        from watchdog import events  # noqa: PLC0415
        from watchdog.observers.inotify import InotifyObserver  # noqa: PLC0415

        handler = events.FileSystemEventHandler()
        handler.dispatch = self._dispatch  # type: ignore[method-assign]
        # Not every write: readers look at a growing file often enough. Not attributes: staging by hard links
        # would raise that event for every linked file. Not reading: that changes no file, and the reader
        # would wake itself.
        kinds = [events.FileCreatedEvent, events.FileMovedEvent, events.FileDeletedEvent]
        kinds += [events.FileClosedEvent]
        kinds += [events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent]
        with _threads_short():
            threading.Thread(target=int, daemon=True).start()  # without it, an observer leaks descriptors
            observer = InotifyObserver()
        try:
            with _threads_short():
                where = os.fspath(self.directory)
                observer.schedule(handler, where, recursive=self._tree, event_filter=kinds)
                observer.start()
        except OSError:
            observer.stop()  # frees its thread and descriptors: retries have no end
            raise
        return observer

    def _dispatch(self, event: FileSystemEvent) -> None:
        self._changed([Path(os.fsdecode(path)).name for path in (event.src_path, event.dest_path) if path])


@contextlib.contextmanager
def _threads_short() -> Iterator[None]:
    """Turns the RuntimeError of a thread that cannot be started (limit on threads, memory) into OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


def _signature(directory: Path) -> Signature | None:
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
