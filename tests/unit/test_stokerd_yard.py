"""What is said of a disk that has not answered yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stokerd.sharding.hot_disk import HotYard

from stokerd.sharding import disks as yard


def test_a_disk_is_no_trouble_before_it_left_a_question_open_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(yard.time, "monotonic", lambda: now[0])
    unused: dict[str, Any] = dict.fromkeys(("tasks", "book", "told"))
    hot = HotYard(*[None] * 3, root=Path("/hot"), **unused)  # type: ignore[arg-type]
    told = []
    for now[0] in (100.0, 100.9, 101.0, 120.0):
        told.append(hot.trouble)
    hot.hear({"kind": "ready"})  # it is owned, what lies there is not known yet
    for now[0] in (120.5, 121.5):
        told.append(hot.trouble)
    waiting = "waiting for the hot directory /hot to answer"
    assert told == ["", "", waiting, waiting, "", waiting]
