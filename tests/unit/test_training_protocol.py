"""The protocol client: never blocks, keeps its last words, and is silent when nobody listens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.training.protocol import MOST_TEXT, Protocol
from support.trainer_run import Inbox


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(tmp_path / "s")
    yield inbox
    inbox.close()


def test_words_carry_launch_and_phase_and_leave_out_what_is_not_known(inbox: Inbox) -> None:
    protocol = Protocol(str(inbox.path), "L1")
    protocol.say("train", ready=1, step=3, loss=None, position="0,24")
    protocol.close()
    assert inbox.read() == [{"LAUNCH": "L1", "PHASE": "train", "READY": "1", "STEP": "3", "POSITION": "0,24"}]


@pytest.mark.parametrize("path", ["", "/nonexistent/socket"])
def test_without_a_supervisor_nothing_happens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.training.protocol.time.sleep", lambda _: pytest.fail("it waits for nobody"))
    protocol = Protocol(path, "")
    protocol.say("load")
    protocol.tell(step=1)
    protocol.close()


def test_a_supervisor_that_went_away_is_no_error(inbox: Inbox) -> None:
    protocol = Protocol(str(inbox.path), "L1")
    inbox.close()
    protocol.say("train")
    inbox.path.unlink()
    protocol.say("train")
    protocol.close()


def test_steps_are_told_at_most_ten_times_a_second_and_the_newest_then(inbox: Inbox) -> None:
    clock = Clock()
    protocol = Protocol(str(inbox.path), "L1", clock)
    for step in range(30):
        clock.now = step * 0.03125
        protocol.tell(step=step)
    assert [int(word["STEP"]) for word in inbox.read()] == [0, 4, 8, 12, 16, 20, 24, 28]


def test_a_full_socket_never_blocks_and_the_end_is_told_when_there_is_room(inbox: Inbox) -> None:
    clock = Clock()
    protocol = Protocol(str(inbox.path), "L1", clock)
    for step in range(2000):  # far more than the queue holds
        clock.now += 1
        protocol.tell(step=step)
    protocol.say("train", finished="steps")
    told = inbox.read()
    assert 0 < len(told) < 2000
    inbox.words = []
    protocol.tell(step=2000)
    assert inbox.read()[0]["FINISHED"] == "steps"


def test_a_long_or_many_lined_text_becomes_one_line(inbox: Inbox) -> None:
    protocol = Protocol(str(inbox.path), "L1")
    protocol.say("load", error="first\nLAUNCH=other " + "x" * 9999)
    (word,) = inbox.read()
    assert word["LAUNCH"] == "L1" and word["ERROR"].startswith("first LAUNCH=other x")
    assert len(word["ERROR"]) == MOST_TEXT


def test_a_name_that_is_no_text_is_told_by_escapes(inbox: Inbox) -> None:
    protocol = Protocol(str(inbox.path), "L1")
    protocol.say("load", error=os.fsdecode(b"caf\xc3\xa9 \xff"))
    assert inbox.read()[0]["ERROR"] == "café \\udcff"
