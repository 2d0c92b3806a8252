"""Whether a source folder may have changed since it was last looked through: inotify, or the reason why not.

An event only means "look again": truth is the look, and looks go on by the clock whatever is told in between.
Only a worker uses this: watching a folder of a dead mount hangs like any other access to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.config.local import on_network
from stoker.corpus.source.folder import is_unfinished
from stoker.kit.file_watch import observe

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

_LIMITS = {
    errno.ENOSPC: "all inotify watches are taken (raise fs.inotify.max_user_watches)",
    errno.EMFILE: "all inotify instances are taken (raise fs.inotify.max_user_instances)",
}


class TreeWatch:
    """Watches a folder and all below it. `polling` says why only looks find changes; empty: they are told."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._observer: BaseObserver | None = None
        self._identity: tuple[int, int] | None = None  # of the root, when it was last looked through
        self._looked = False
        self._told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.polling = ""

    def begin(self) -> None:
        """A look begins: watch what it will see, and forget what was told up to now."""
        before, self._identity = self._identity, _identity(self._root)
        if before != self._identity or not self._is_armed():
            self._disarm()
            self._arm()
        self._looked = True
        self._drain()

    @property
    def descriptor(self) -> int:
        """Readable when something was told."""
        return self._told[0]

    def changed(self) -> bool:
        """Whether a look might find something new: it was told, or the root is another folder now."""
        told = self._drain()
        return self._looked and (
            told or _identity(self._root) != self._identity or not (self.polling or self._is_armed())
        )

    def _arm(self) -> None:
        self.polling = ""
        if self._identity is None:
            self.polling = "it is not there"
        elif kind := on_network(self._root):
            self.polling = f"{kind} does not tell of what other machines write"
        else:
            try:
                self._observer = self._observe()
            except OSError as error:
                self.polling = _LIMITS.get(error.errno or 0, error.strerror or str(error))

    def _observe(self) -> BaseObserver:
        # Late, for the listers of hot and warm do without it.
        from watchdog import events  # noqa: PLC0415

        handler = events.FileSystemEventHandler()
        handler.dispatch = self._dispatch  # type: ignore[method-assign]
        # Names that come, go, or are closed after writing. Not every write: a file that grows is looked at
        # often enough; nor attributes: staging by hard links would raise that for every file it links.
        telling = [
            *(
                events.FileCreatedEvent,
                events.FileMovedEvent,
                events.FileDeletedEvent,
                events.FileClosedEvent,
            ),
            *(events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent),
        ]
        return observe(handler, self._root, recursive=True, event_filter=telling)

    def _is_armed(self) -> bool:
        return self._observer is not None and all(emitter.is_alive() for emitter in self._observer.emitters)

    def _disarm(self) -> None:
        if self._observer is not None:
            observer, self._observer = self._observer, None
            observer.stop()
            observer.join(1.0)

    def _dispatch(self, event: FileSystemEvent) -> None:
        names = [Path(os.fsdecode(path)).name for path in (event.src_path, event.dest_path) if path]
        if not all(is_unfinished(name) for name in names):
            with contextlib.suppress(BlockingIOError):  # full of words that say the same
                os.write(self._told[1], b"c")

    def _drain(self) -> bool:
        told = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._told[0], 4096):
                told = True
        return told


def _identity(root: Path) -> tuple[int, int] | None:
    try:
        found = root.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
