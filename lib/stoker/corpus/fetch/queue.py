"""Which file a free hands takes next: those that may be tried now, in the order they were given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from stoker.corpus.fetch.transfer import FileOnItsWay
from stoker.corpus.http.hub import origin

_Origin = tuple[str, str, int | None]


class Queue:
    """The files given and not ended, some of them in hand. Thread-safe; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._files: dict[str, FileOnItsWay] = {}
        self._in_hand: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._closed_until: dict[_Origin, float] = {}
        self.ended = False

    def add(self, file: FileOnItsWay) -> bool:
        """Take a file in; False when its path is here already."""
        with self._changed:
            if file.file.path in self._files:
                return False
            self._files[file.file.path] = file
            self._changed.notify()
            return True

    def take(self) -> FileOnItsWay | None:
        """The next file to try, waiting for one; None when there will be no more."""
        with self._changed:
            while not self.ended:
                if (ready := self._ready()) is not None:
                    self._in_hand.add(ready.file.path)
                    return ready
                due = self._next_due()
                self._changed.wait(None if due is None else max(0.0, due - self._clock()) + 0.001)
            return None

    def put_back(self, file: FileOnItsWay, wait_s: float, *, everywhere: bool) -> None:
        """Try it again after wait_s; everywhere: and nothing else of its server before that."""
        with self._changed:
            due = self._clock() + wait_s
            self._in_hand.discard(file.file.path)
            self._not_before[file.file.path] = due
            if everywhere:
                server = origin(file.file.url)
                self._closed_until[server] = max(due, self._closed_until.get(server, due))
            self._changed.notify_all()

    def remove(self, path: str) -> None:
        """The file is done with."""
        with self._changed:
            self._in_hand.discard(path)
            self._files.pop(path, None)
            self._not_before.pop(path, None)

    def end(self) -> None:
        """No file is taken any more."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def drop(self, path: str) -> FileOnItsWay | None:
        """Forget a file that waits; the file itself when it is in hand, and stays until removed."""
        with self._changed:
            if path in self._in_hand:
                return self._files[path]
            if (waiting := self._files.pop(path, None)) is not None:
                waiting.close()
            self._not_before.pop(path, None)
            return None

    def in_hand(self) -> list[FileOnItsWay]:
        """The files that are being worked on."""
        with self._changed:
            return [self._files[path] for path in self._in_hand]

    def __len__(self) -> int:
        with self._changed:
            return len(self._files)

    def _waiting(self) -> Iterator[tuple[float, FileOnItsWay]]:
        for path, file in self._files.items():
            if path not in self._in_hand:
                closed = self._closed_until.get(origin(file.file.url), 0.0)
                yield max(self._not_before.get(path, 0.0), closed), file

    def _ready(self) -> FileOnItsWay | None:
        now = self._clock()
        return next((file for due, file in self._waiting() if due <= now), None)

    def _next_due(self) -> float | None:
        return min((due for due, _ in self._waiting()), default=None)
