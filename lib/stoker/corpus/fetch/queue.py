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
                waiting = [(self._due(file), file) for file in self._files.values() if not file.in_hand]
                now = self._clock()
                if (ready := next((file for due, file in waiting if due <= now), None)) is not None:
                    ready.in_hand = True
                    return ready
                self._changed.wait(min(due for due, _ in waiting) - now + 0.001 if waiting else None)
            return None

    def put_back(self, file: FileFetch, wait_s: float, *, everywhere: bool) -> None:
        """Try it again after wait_s; everywhere: and nothing else of its server before that."""
        with self._changed:
            file.in_hand, file.not_before = False, self._clock() + wait_s
            if everywhere:
                server = origin(file.file.url)
                self._closed_until[server] = max(file.not_before, self._closed_until.get(server, 0.0))
            self._changed.notify_all()

    def remove(self, path: str) -> None:
        """The file is done with."""
        with self._changed:
            self._files.pop(path, None)

    def drop(self, path: str) -> bool:
        """Forget a file; False when it is in hand, where it ends soon and stays until removed."""
        with self._changed:
            file = self._files.get(path)
            if file is not None and file.in_hand:
                file.stop(dropped=True)
                return False
            if file is not None:
                self._files.pop(path).close()
            return True

    def end(self) -> None:
        """No file is taken any more."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def in_hand(self) -> list[FileFetch]:
        """The files that are being worked on."""
        with self._changed:
            return [file for file in self._files.values() if file.in_hand]

    def __len__(self) -> int:
        return len(self._files)

    def _due(self, file: FileFetch) -> float:
        return max(file.not_before, self._closed_until.get(origin(file.file.url), 0.0))
