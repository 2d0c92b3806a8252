"""When a daemon acts next: its single wait, for signals, files and descriptors, and its retry delays.

Signal handlers only enqueue; the loop that calls wait() handles everything. Files are watched by inotify
where that works, else by comparing inode and times. A swapped or removed directory ends inotify in silence,
so every check compares the inode first. An event only means "look now": the reader decides by the files that
it finds.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import selectors
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from stoker.config.places import on_network

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

CHECK_S = 2.0  # the longest time between two looks at the watched directories' inodes
POLL_S = 0.5  # the same where inotify does not work, or while the directory does not exist
Signature = tuple[int, int, int]  # device, inode, mtime in ns: a new or removed entry changes the mtime
_LIMITS = {
    errno.ENOSPC: "all inotify watches are taken (raise fs.inotify.max_user_watches)",
    errno.EMFILE: "all inotify instances are taken (raise fs.inotify.max_user_instances)",
}


class Event(NamedTuple):
    """A signal came, a directory may have changed, or a descriptor is readable or closed at its other end.

    `about` is the signal's number, the directory's path or the descriptor's tag.
    """

    kind: Literal["signal", "file", "fd"]
    about: Any


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
        now = _signature(self.directory)  # first: the next check finds what changes from here on
        is_stale = self.is_stale()
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
            self.polling = f"{kind} does not report what other machines write"
        else:
            try:
                self._observer = self._observe()
            except OSError as error:
                self.polling = _LIMITS.get(error.errno or 0, error.strerror or str(error))
            except RuntimeError as error:  # no thread can be started: a limit on threads, or memory
                self.polling = str(error)

    def _observe(self) -> BaseObserver:
        """Makes inotify report the directory; a failure leaves no thread or descriptor."""
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
        threading.Thread(target=int, daemon=True).start()  # without it, an observer leaks descriptors
        observer = InotifyObserver()
        try:
            observer.schedule(handler, os.fspath(self.directory), recursive=self._tree, event_filter=kinds)
            observer.start()
        except (OSError, RuntimeError):
            observer.stop()  # frees its thread and descriptors: retries have no end
            raise
        return observer

    def _dispatch(self, event: FileSystemEvent) -> None:
        self._changed([Path(os.fsdecode(path)).name for path in (event.src_path, event.dest_path) if path])


def _signature(directory: Path) -> Signature | None:
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


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

    @property
    def wake_up(self) -> int:
        """The descriptor in which the numbers of signals wait until they are handled."""
        return self._woken

    def hear_also(self, wake_up: int) -> None:
        """Takes in the signals that wait in the wake-up descriptor of this process's image before."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, os.read(wake_up, 4096))
        os.close(wake_up)

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


class Backoff:
    """Retry delays that double from first_s to most_s seconds; each is drawn from the upper half of its step.

    The jitter keeps many clients from returning at once.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        self.failures, self._step_s = 0, first_s

    def next(self) -> float:
        """Counts a failure; returns the seconds to wait before the next attempt."""
        self.failures += 1
        step = self._step_s
        self._step_s = min(step * 2, self._most_s)
        return step * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret

    def reset(self) -> None:
        """Starts over at first_s after a success."""
        self.failures, self._step_s = 0, self._first_s


class Retries:
    """Retry delays by subject: exponential, with jitter, forgotten on success."""

    def __init__(self) -> None:
        self._failed: defaultdict[str, Backoff] = defaultdict(lambda: Backoff(0.5, 60.0))
        self.not_before: dict[str, float] = {}

    def failed(self, subject: str) -> float:
        """Counts a failure; returns the seconds until the next attempt."""
        wait_s = self._failed[subject].next()
        self.retry_in(subject, wait_s)
        return wait_s

    def retry_in(self, subject: str, seconds: float) -> None:
        """Delays the subject's next attempt by that many seconds without counting a failure."""
        self.not_before[subject] = time.monotonic() + seconds

    def allows(self, subject: str) -> bool:
        return time.monotonic() >= self.not_before.get(subject, 0.0)

    def failures(self, subject: str) -> int:
        """Returns the number of failures of the subject in a row."""
        return self._failed[subject].failures if subject in self._failed else 0

    def succeeded(self, subject: str) -> None:
        self._failed.pop(subject, None)
        self.not_before.pop(subject, None)
