"""Which file a free hand takes next."""

from __future__ import annotations

import threading
from typing import Any

from stoker.corpus.fetch.fetch_worker import Queue
from stoker.corpus.http.remote_file import RemoteFile
from support.waiting import LONG_S, wait_until


class Waiting:
    """All that the queue knows of a file."""

    def __init__(self, path: str, host: str = "h") -> None:
        self.file = RemoteFile(path, None, "", f"http://{host}/{path}")
        self.in_hand = False
        self.not_before = 0.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def queue_of(*files: Waiting) -> tuple[Any, Clock]:
    clock = Clock()
    queue: Any = Queue(clock)
    for file in files:
        queue.add(file)
    return queue, clock


def test_files_are_taken_in_their_order_each_by_one_hand_and_never_twice() -> None:
    a, b = Waiting("a"), Waiting("b")
    queue, _ = queue_of(a, b)
    queue.add(Waiting("a"))
    assert [queue.take(), queue.take()] == [a, b]
    assert queue.in_hand() in ([a, b], [b, a])


def test_a_file_that_waits_lets_the_next_one_pass_and_comes_first_again_when_due() -> None:
    a, b, c = Waiting("a"), Waiting("b"), Waiting("c")
    queue, clock = queue_of(a, b, c)
    queue.put_back(queue.take(), 5.0, everywhere=False)
    assert queue.take() is b
    clock.now = 5.0
    assert queue.take() is a


def test_a_wait_of_a_whole_server_holds_for_its_files_alone() -> None:
    a, b, other = Waiting("a"), Waiting("b"), Waiting("o", "i")
    queue, clock = queue_of(a, b, other)
    queue.put_back(queue.take(), 5.0, everywhere=True)
    assert queue.take() is other
    queue.remove("o")
    clock.now = 5.0
    assert [queue.take(), queue.take()] == [a, b]


def test_hands_that_wait_take_what_comes_and_leave_at_the_end() -> None:
    queue, _ = queue_of()
    took: list[Any] = []

    def hand() -> None:
        while (file := queue.take()) is not None:
            took.append(file)

    hands = [threading.Thread(target=hand) for _ in range(2)]
    for each in hands:
        each.start()
    queue.add(a := Waiting("a"))
    wait_until(lambda: took == [a])
    queue.end()
    for each in hands:
        each.join(LONG_S)
        assert not each.is_alive()
