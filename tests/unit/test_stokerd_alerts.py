"""A trouble that lasts is said once or now and then, and its end only if it was said."""

from __future__ import annotations

from typing import Any

import pytest

import stoker.kit.events
from stoker.kit.events import Alerts


class Heard:
    """Stands in for the events."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def record(self, event: str, **_: Any) -> None:
        self.words.append(event)


def test_it_is_told_once_a_while_and_a_new_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(stoker.kit.events.time, "monotonic", lambda: clock[0])
    heard = Heard()
    alerts = Alerts(heard, repeat_s=10.0)  # type: ignore[arg-type]
    for clock[0] in (100.0, 105.0, 111.0):
        alerts.raise_("away")
        alerts.raise_("short", repeat=False)
    alerts.raise_("away", "other")
    assert heard.words == ["away", "short", "away", "away"]
    alerts.clear("short", tell="enough")
    alerts.clear("short", tell="enough")
    alerts.clear("never", tell="nothing")
    alerts.raise_("short", repeat=False)
    assert heard.words[4:] == ["enough", "short"]
    alerts.clear("short", tell="enough")
    alerts.raise_("short", repeat=False)  # too soon to be news
    alerts.clear("short", tell="enough")
    assert heard.words[6:] == ["enough"]
