"""What is said of a disk that has not answered yet."""

from __future__ import annotations

from pathlib import Path

from stokerd.sharding.facts.disks import Disk
from support.shard_state import Clock


def test_a_disk_is_no_trouble_before_it_left_a_question_open_for_a_second(clock: Clock) -> None:
    clock.now = 100.0
    hot = Disk("hot", Path("/hot"))
    told = []
    for clock.now in (100.0, 100.9, 101.0, 120.0):
        told.append(hot.trouble)
    hot.heard()
    hot.owned()  # what lies there is not known yet
    for clock.now in (120.5, 121.5):
        told.append(hot.trouble)
    waiting = "waiting for the hot directory /hot to answer"
    assert told == ["", "", waiting, waiting, "", waiting]
