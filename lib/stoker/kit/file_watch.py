"""One directory, watched: by inotify where that works, by its inode and times where it does not.

A swapped or removed directory ends inotify in silence, so every look compares the inode first. An event only
means "look now": the truth is what the reader then finds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers.api import BaseObserver

# Reading is no change; and the reader itself would wake the daemon for ever.
READING = frozenset(("opened", "closed_no_write"))
Signature = tuple[int, int, int]  # device, inode, mtime in ns: entries coming and going change the mtime


class DirectoryWatch:
    """Calls `changed` (from another thread) when entries of a directory come, go or are written."""

    def __init__(self, directory: Path, changed: Callable[[], None]) -> None:
        self.directory = directory
        self._changed = changed
        self._observer: BaseObserver | None = None
        self._seen = _signature(directory)
        if self._seen is not None:
            self._arm()

    @property
    def armed(self) -> bool:
        """Whether inotify tells of changes; without it check() must be called often."""
        return self._observer is not None and all(emitter.is_alive() for emitter in self._observer.emitters)

    def check(self) -> bool:
        """Compare with the disk, arm anew where needed; True when something may have gone unreported."""
        now = _signature(self.directory)
        before, self._seen = self._seen, now
        replaced = (before and before[:2]) != (now and now[:2])
        if self.armed and not replaced:
            return False
        lost = self._observer is not None
        self.close()
        if now is not None:
            self._arm()
        return lost or before != now

    def close(self) -> None:
        """End the watching threads."""
        if self._observer is not None:
            observer, self._observer = self._observer, None
            observer.stop()
            observer.join(1.0)

    def _dispatch(self, event: FileSystemEvent) -> None:
        if event.event_type not in READING:
            self._changed()

    def _arm(self) -> None:
        from watchdog.events import FileSystemEventHandler  # noqa: PLC0415 - see observe()

        handler = FileSystemEventHandler()
        handler.dispatch = self._dispatch  # type: ignore[method-assign]
        # No watches, instances or descriptors left, or the directory went this instant: check() looks then.
        with contextlib.suppress(OSError):
            self._observer = observe(handler, self.directory)


def observe(
    handler: FileSystemEventHandler,
    directory: Path,
    *,
    recursive: bool = False,
    event_filter: list[type[FileSystemEvent]] | None = None,
) -> BaseObserver:
    """Have inotify tell the handler of a directory; where it cannot raises OSError and leaves nothing."""
    # Late, for a daemon says READY before it needs this; and only inotify, not every platform's observer.
    from watchdog.observers.inotify import InotifyObserver  # noqa: PLC0415

    with _threads_short():
        threading.Thread(target=int, daemon=True).start()  # an observer without one would keep descriptors
        observer = InotifyObserver()
    try:
        with _threads_short():
            observer.schedule(handler, os.fspath(directory), recursive=recursive, event_filter=event_filter)
            observer.start()
    except OSError:
        observer.stop()  # it has a thread and descriptors since it was made, and tries go on for ever
        raise
    return observer


@contextlib.contextmanager
def _threads_short() -> Iterator[None]:
    """Raise OSError where no thread can be started, by limits on them or on memory."""
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
