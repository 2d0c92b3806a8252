"""When every file waits for its next try: what is said at once, and what is worth an event."""

from __future__ import annotations

from typing import Any

import pytest

import stokerd.common.alerts
from stoker.corpus.fetch.transfers import Transfers
from stokerd.download.fetch_waits import FetchWaits

STALL_S = 300.0


class Heard:
    """Stands in for the events."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def record(self, event: str, level: str = "info", **_: Any) -> None:
        self.words.append(event)


class World:
    """Two files with the worker; `now` is the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(stokerd.common.alerts.time, "monotonic", lambda: self.now)
        self.heard, self.transfers = Heard(), Transfers()
        self.waits = FetchWaits(self.heard, STALL_S)  # type: ignore[arg-type]
        self.transfers.add("a", 100)
        self.transfers.add("b", 100)

    def hear(self, kind: str, path: str, **fields: Any) -> None:
        """The worker says something."""
        self.transfers.hear({"kind": kind, "path": path, **fields}, self.now)

    def retry(self, path: str, wait_s: float) -> None:
        """A try failed."""
        self.hear("retry", path, **{"class": "server", "reason": "h answers 503", "wait_s": wait_s})

    def look(self, after_s: float = 0.0) -> str:
        """The text, so much later."""
        self.now += after_s
        self.waits.look(self.transfers, self.now)
        return self.waits.text


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_nothing_is_said_while_a_file_is_worked_on_or_none_was_tried(world: World) -> None:
    assert world.look() == ""
    world.hear("start", "a", offset=0)
    world.retry("b", 3600.0)
    assert world.look() == ""
    assert world.heard.words == []


def test_short_waits_are_shown_and_become_an_event_when_they_bring_nothing_for_long(world: World) -> None:
    world.retry("a", 2.0)
    world.retry("b", 5.0)
    assert world.look().startswith("2 files wait, tried again at ") and world.look().endswith("answers 503")
    assert world.heard.words == []
    world.retry("a", 30.0)
    assert world.look(STALL_S + 1)
    assert world.heard.words == ["downloads_wait"]
    world.look(STALL_S)
    assert world.heard.words == ["downloads_wait"], "it is said once"


def test_a_long_wait_is_an_event_at_once_and_bytes_end_it(world: World) -> None:
    world.retry("a", 3600.0)
    world.retry("b", 7200.0)
    world.look()
    assert world.heard.words == ["downloads_wait"]
    world.hear("start", "a", offset=0)
    assert world.look() == "" and world.heard.words == ["downloads_wait"], "a try is no byte yet"
    world.hear("progress", "a", bytes=50, received=50)
    world.look()
    assert world.heard.words == ["downloads_wait", "downloads_go_on"]


def test_files_that_nobody_wants_any_more_end_it_too(world: World) -> None:
    world.retry("a", 3600.0)
    world.look()
    world.transfers.forget()
    assert world.look() == ""
    assert world.heard.words == ["downloads_wait", "downloads_go_on"]
