"""How far the hashing of a folder is, in bytes and in time."""

from __future__ import annotations

import pytest

from stokerd.download import hashing_rate as hashing_pace
from stokerd.download.hashing_rate import HashingPace


def test_the_rate_is_that_of_all_in_hand_and_gives_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(hashing_pace.time, "monotonic", lambda: now[0])
    pace = HashingPace()
    idle = {"bytes_of": 1000, "bytes_done": 0, "rate_bytes_per_second": 0, "eta_s": None}
    assert pace.shown(1000, 1000) == idle
    pace.began("a")
    pace.began("b")
    now[0] += 10.0
    pace.heard("a", {"kind": "hashed", "bytes": 200})
    pace.heard("b", {"kind": "hashed", "bytes": 100})
    pace.heard("gone", {"kind": "hashed", "bytes": 100})
    told = pace.shown(1000, 1000)
    assert told == {"bytes_of": 1000, "bytes_done": 300, "rate_bytes_per_second": 30, "eta_s": 23}
    pace.ended("a", 500)  # receipted, so not among the unproven any more
    assert pace.shown(1000, 500)["bytes_done"] == 600
    pace.ended("b", 0)  # it changed: what was read of it is nothing
    told = pace.shown(1000, 500)
    assert told == {"bytes_of": 1000, "bytes_done": 500, "rate_bytes_per_second": 0, "eta_s": None}
