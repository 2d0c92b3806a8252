"""The single wait of a daemon: for signals, files and descriptors (workers, pipes, sockets, pidfds).

Signal handlers only enqueue; the loop that calls wait() handles everything.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from stoker.kit.file_watch import Watch

CHECK_S = 2.0  # the longest time between two looks at the watched directories' inodes
POLL_S = 0.5  # the same where inotify does not work, or while the directory does not exist


class Event(NamedTuple):
    """A signal came, a directory may have changed, or a descriptor is readable or closed at its other end.

    `about` is the signal's number, the directory's path or the descriptor's tag.
    """

    kind: Literal["signal", "file", "fd"]
    about: Any


class Waiter:
    """Waits for the first of several events; created and used in the main thread."""

    def __init__(self, on_signal: Callable[[int], None] | None = None) -> None:
        self.received: set[int] = set()  # every signal received so far, also between two waits
        self.on_signal = on_signal  # called by wait(), never by a handler
        self.longest_s = math.inf  # upper bound of every wait, also where the caller asks for a longer wait
        self._selector = selectors.DefaultSelector()
        self._watches: dict[Path, Watch] = {}
        self._changed: set[Path] = set()
        self._previous: dict[int, Any] = {}
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._previous_wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def signals(self, *signums: int) -> None:
        """Turns these signals into events."""
        for signum in signums:
            self._previous[signum] = signal.signal(signum, self._on_signum)

    def watch(self, directory: Path) -> None:
        """Reports changes in a directory, also if it does not exist yet or is replaced."""
        if directory not in self._watches:
            self._watches[directory] = Watch(directory, lambda _: self._file_changed(directory))

    def add_fd(self, fd: int, tag: Hashable) -> None:
        """Reports fd for as long as it is readable."""
        self.remove_fd(fd)  # the kernel gives a closed descriptor's number to another file
        self._selector.register(fd, selectors.EVENT_READ, tag)

    def remove_fd(self, fd: int) -> None:
        """Stops reporting fd; fd may be closed already, or never have been added."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def wait(self, timeout_s: float) -> list[Event]:
        """Returns the events as soon as there are any; an empty list after timeout_s or longest_s seconds."""
        give_up = time.monotonic() + min(timeout_s, self.longest_s)
        while True:
            self._check_watches()
            events = self._ready(self._patience(give_up))
            if events or time.monotonic() >= give_up:
                return events

    def close(self) -> None:
        """Ends the watches and restores the earlier signal handlers."""
        for watch in self._watches.values():
            watch.close()
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)

    def _on_signum(self, signum: int, _frame: FrameType | None) -> None:
        self.received.add(signum)  # the event itself goes through the wake-up pipe

    def _file_changed(self, directory: Path) -> None:
        """Marks the directory as changed; the watching threads call this."""
        self._changed.add(directory)
        with contextlib.suppress(OSError):  # full: the loop is about to look anyway; closed: the loop ended
            os.write(self._wake, b"\0")  # no signal has this number

    def _check_watches(self) -> None:
        for directory, watch in self._watches.items():
            if watch.renew():
                self._changed.add(directory)

    def _patience(self, give_up: float) -> float:
        if self._changed:
            return 0.0
        left_s = max(0.0, give_up - time.monotonic())
        if not self._watches:
            return left_s
        return min(left_s, CHECK_S if all(watch.armed for watch in self._watches.values()) else POLL_S)

    def _ready(self, timeout_s: float) -> list[Event]:
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._woken:
                events += self._signal_events()
            else:
                events.append(Event("fd", key.data))
        while self._changed:
            events.append(Event("file", self._changed.pop()))
        return events

    def _signal_events(self) -> list[Event]:
        # Each byte is a signal's number; repeats of a signal are one event, as in the kernel.
        data = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._woken, 4096):
                data += piece
        signums = [signum for signum in dict.fromkeys(data) if signum in self._previous]
        self.received.update(signums)
        for signum in signums:
            if self.on_signal is not None:
                self.on_signal(signum)
        return [Event("signal", signum) for signum in signums]
