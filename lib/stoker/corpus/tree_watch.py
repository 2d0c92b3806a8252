"""Whether a source folder may have changed since it was last looked through: inotify, or the reason why not.

Every look watches the folders it enters anew and forgets those it did not see, so that a folder which was
removed and made again, or swapped for another, is watched from the look that finds it on.
"""

from __future__ import annotations

import errno
from pathlib import Path

from stoker.config.local import on_network
from stoker.corpus.folder import is_unfinished
from stoker.kit.inotify import Inotify

_LIMITS = {
    errno.ENOSPC: "all inotify watches are taken (raise fs.inotify.max_user_watches)",
    errno.EMFILE: "all inotify instances are taken (raise fs.inotify.max_user_instances)",
}


class TreeWatch:
    """Watches what looks enter. `polling` says why only looks find changes; empty: they are told."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inotify: Inotify | None = None
        self._seen: dict[int, int] = {}  # the look that entered it last, by watch
        self._look = 0
        self._identity: tuple[int, int] | None = None
        self.polling = ""

    def begin(self) -> None:
        """A look begins: what happened up to now it will see."""
        self._look += 1
        self._identity = _identity(self._root)
        self.polling = self._why_not()
        if self.polling:
            self._give_up()
            return
        if self._inotify is None:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self.polling = _LIMITS.get(error.errno or 0, error.strerror or str(error))
                return
        self._inotify.changes()

    def entered(self, folder: int) -> None:
        """The look enters this open folder, and has not listed it yet."""
        if self._inotify is None:
            return
        try:
            self._seen[self._inotify.add(folder)] = self._look
        except OSError as error:
            self.polling = _LIMITS.get(error.errno or 0, error.strerror or str(error))
            self._give_up()

    def end(self) -> None:
        """The look is over."""
        for watch in [watch for watch, look in self._seen.items() if look != self._look]:
            del self._seen[watch]
            if self._inotify is not None:
                self._inotify.remove(watch)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What to wait on beside other things."""
        return () if self._inotify is None else (self._inotify.fileno(),)

    def changed(self) -> bool:
        """Whether a look might find something new: a change was told, or the root is another folder now."""
        names = [] if self._inotify is None else self._inotify.changes()
        told = any(not name or not is_unfinished(name) for name in names)
        return told or (self._look > 0 and _identity(self._root) != self._identity)

    def _why_not(self) -> str:
        kind = on_network(self._root)
        return f"{kind} does not tell of what other machines write" if kind else ""

    def _give_up(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None
        self._seen.clear()


def _identity(root: Path) -> tuple[int, int] | None:
    try:
        found = root.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
