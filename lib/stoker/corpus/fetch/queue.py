"""The files of the fetch worker: picks the next one for a free thread, in the order they were given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stoker.corpus.fetch.transfer import FileFetch
from stoker.corpus.http.hub import origin


class Queue:
    """The files given and not ended, some of them in hand. Thread-safe; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._files: dict[str, FileFetch] = {}
        self._in_hand: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._closed_until: dict[object, float] = {}  # by server
        self.ended = False

    def add(self, file: FileFetch) -> None:
        """Take a file in, unless its path is here already."""
        with self._changed:
            self._files.setdefault(file.file.path, file)
            self._changed.notify()

    def take(self) -> FileFetch | None:
        """The next file to try, waiting for one; None when there will be no more."""
        with self._changed:
            while not self.ended:
                waiting = {path: self._due(file) for path, file in self._files.items()}
                for path in self._in_hand:
                    del waiting[path]
                now = self._clock()
                if (path := next((each for each, due in waiting.items() if due <= now), "")) != "":
                    self._in_hand.add(path)
                    return self._files[path]
                self._changed.wait(min(waiting.values()) - now + 0.001 if waiting else None)
            return None

    def put_back(self, file: FileFetch, wait_s: float, *, everywhere: bool) -> None:
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

    def drop(self, path: str) -> bool:
        """Forget a file; False when it is in hand, where it ends soon and stays until removed."""
        with self._changed:
            if path in self._in_hand:
                self._files[path].stop(dropped=True)
                return False
            if path in self._files:
                self._files[path].close()
            self.remove(path)
            return True

    def end(self) -> None:
        """No file is taken any more."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def in_hand(self) -> list[FileFetch]:
        """The files that are being worked on."""
        with self._changed:
            return [self._files[path] for path in self._in_hand]

    def __len__(self) -> int:
        return len(self._files)

    def _due(self, file: FileFetch) -> float:
        closed_until = self._closed_until.get(origin(file.file.url), 0.0)
        return max(self._not_before.get(file.file.path, 0.0), closed_until)
