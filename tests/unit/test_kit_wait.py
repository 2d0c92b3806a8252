"""One wait for signals, files, timers and descriptors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.kit.loop import Event, Waiter
from support.waiting import LONG_S, wait_until


@pytest.fixture
def waiter() -> Iterator[Waiter]:
    waiter = Waiter()
    yield waiter
    waiter.close()


def wait_for(waiter: Waiter, event: object, timeout_s: float = LONG_S) -> None:
    """Wait until exactly this event comes; others may come before it."""
    deadline = time.monotonic() + timeout_s
    while event not in (events := waiter.wait(max(0.0, deadline - time.monotonic()))):
        assert time.monotonic() < deadline, f"{event} did not come; last {events}"


def settle(waiter: Waiter) -> None:
    while waiter.wait(0.05):
        pass


def test_nothing_is_an_empty_list_after_the_timeout(waiter: Waiter) -> None:
    started = time.monotonic()
    assert waiter.wait(0.05) == []
    assert time.monotonic() - started >= 0.05


def test_a_signal_wakes_the_wait_and_is_remembered(waiter: Waiter) -> None:
    told: list[int] = []
    waiter.on_signal = told.append
    waiter.signals(signal.SIGUSR1, signal.SIGTERM)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    assert waiter.wait(LONG_S) == [Event("signal", signal.SIGUSR1)]
    assert waiter.received == {signal.SIGUSR1} and told == [signal.SIGUSR1]
    os.kill(os.getpid(), signal.SIGTERM)  # between two waits
    assert signal.SIGTERM in waiter.received
    assert waiter.wait(LONG_S) == [Event("signal", signal.SIGTERM)]


def test_signals_that_an_image_before_had_not_handled_are_heard(waiter: Waiter) -> None:
    waiter.signals(signal.SIGTERM)
    woken, wake = os.pipe2(os.O_NONBLOCK)
    os.write(wake, bytes([0, signal.SIGTERM]))
    waiter.hear_also(woken)
    os.close(wake)
    assert waiter.wait(LONG_S) == [Event("signal", signal.SIGTERM)]
    assert waiter.received == {signal.SIGTERM}


def test_signals_go_back_to_who_had_them() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    waiter = Waiter()
    waiter.signals(signal.SIGUSR2)
    waiter.close()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_readable_descriptor_is_an_event_until_it_is_removed(waiter: Waiter) -> None:
    reading, writing = os.pipe()
    waiter.add_fd(reading, ("worker", 3))
    os.write(writing, b"x")
    assert waiter.wait(LONG_S) == [Event("fd", ("worker", 3))]
    os.close(writing)
    os.read(reading, 10)
    assert waiter.wait(LONG_S) == [Event("fd", ("worker", 3))], "the other end's close is an event too"
    waiter.remove_fd(reading)
    waiter.remove_fd(reading)
    os.close(reading)
    assert waiter.wait(0.05) == []


def test_a_new_file_a_rename_and_a_removal_are_events_and_reading_is_not(
    waiter: Waiter, tmp_path: Path
) -> None:
    waiter.watch(tmp_path)
    changed = Event("file", tmp_path)
    (tmp_path / "a").write_text("x")
    wait_for(waiter, changed)
    (tmp_path / "a").rename(tmp_path / "b")
    wait_for(waiter, changed)
    settle(waiter)

    def nothing_comes_of_reading() -> bool:
        list(tmp_path.iterdir())
        (tmp_path / "b").read_text()
        return waiter.wait(0.2) == []

    wait_until(nothing_comes_of_reading)  # again while the watching threads still tell of the writing
    (tmp_path / "b").unlink()
    wait_for(waiter, changed)


def test_a_directory_that_appears_later_is_watched_then(waiter: Waiter, tmp_path: Path) -> None:
    late = tmp_path / "late"
    waiter.watch(late)
    assert waiter.wait(0) == []
    late.mkdir()
    wait_for(waiter, Event("file", late))
    settle(waiter)
    (late / "x").touch()
    wait_for(waiter, Event("file", late))


def test_a_swapped_directory_is_noticed_and_the_new_one_watched(waiter: Waiter, tmp_path: Path) -> None:
    watched, other = tmp_path / "watched", tmp_path / "other"
    watched.mkdir()
    other.mkdir()
    waiter.watch(watched)
    (watched / "seen").touch()
    wait_for(waiter, Event("file", watched))
    settle(waiter)
    watched.rename(tmp_path / "away")
    other.rename(watched)
    wait_for(waiter, Event("file", watched))
    settle(waiter)
    (watched / "new").touch()
    wait_for(waiter, Event("file", watched))


def test_a_removed_directory_is_noticed_and_its_successor_watched(waiter: Waiter, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    waiter.watch(watched)
    shutil.rmtree(watched)
    wait_for(waiter, Event("file", watched))
    settle(waiter)
    watched.mkdir()
    wait_for(waiter, Event("file", watched))


def test_without_inotify_the_directory_is_polled(
    waiter: Waiter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchdog.observers.inotify import InotifyObserver

    def no_watches_left(*_: object, **__: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(InotifyObserver, "schedule", no_watches_left)
    os.utime(tmp_path, (0, 0))  # polling goes by the time, which two changes within one clock tick share
    waiter.watch(tmp_path)
    assert waiter.wait(0) == []
    (tmp_path / "a").touch()
    wait_for(waiter, Event("file", tmp_path))


POLLING = """
import os, sys, threading
from pathlib import Path
from stoker.kit.loop import Event, Waiter

waiter, directories = Waiter(), [Path(name) for name in sys.argv[1:]]
for directory in directories:
    os.utime(directory, (0, 0))
    waiter.watch(directory)
def held():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))
before = held()
while waiter.wait(0):
    pass
for _ in range(20):
    waiter.wait(0)
assert held() == before, (before, held())
(directories[-1] / "a").touch()
assert waiter.wait(20) == [Event("file", directories[-1])]
waiter.close()
"""


@pytest.mark.parametrize("limit", ["max_inotify_instances", "max_inotify_watches"])
def test_where_all_of_inotify_is_taken_directories_are_polled_and_nothing_piles_up(
    limit: str, tmp_path: Path
) -> None:
    alone = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    limited = [*alone, f'echo 0 > /proc/sys/user/{limit} && exec "$@"', "sh"]
    try:
        subprocess.run([*limited, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no user namespace here")
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        directory.mkdir()
    command = [*limited, sys.executable, "-P", "-c", POLLING, *map(str, directories)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("room", [0, 2, 3])
def test_where_no_thread_can_be_started_the_directory_is_polled(
    waiter: Waiter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    start, started = threading.Thread.start, [0]

    def no_room(thread: threading.Thread) -> None:
        started[0] += 1
        if started[0] > room:
            raise RuntimeError("can't start new thread")
        start(thread)

    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(threading.Thread, "start", no_room)
    os.utime(tmp_path, (0, 0))
    waiter.watch(tmp_path)
    assert waiter.wait(0) == []
    (tmp_path / "a").touch()
    wait_for(waiter, Event("file", tmp_path))
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_closing_ends_the_watching_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    waiter = Waiter()
    waiter.watch(tmp_path)
    assert set(threading.enumerate()) - before
    waiter.close()
    wait_until(lambda: not set(threading.enumerate()) - before, what="the end of the threads")
