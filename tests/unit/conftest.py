"""The stage-shard loop's state for tests in process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.shard_state import Clock, MakeShard, Shard


@pytest.fixture
def make_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShard]:
    """Makes states over pipelines of their own; nothing of them is to survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    made: list[Shard] = []

    def make(**how: Any) -> Shard:
        made.append(Shard(tmp_path / f"home{len(made)}", **how))
        return made[-1]

    yield make
    for shard in made:
        shard.close()


@pytest.fixture
def shard(make_shard: MakeShard) -> Shard:
    """A pinned dataset of a folder, on a hot disk that was looked at, without warm."""
    made = make_shard()
    made.pin()
    made.look()
    made.events.all.clear()
    return made


@pytest.fixture
def warm_shard(make_shard: MakeShard, tmp_path: Path) -> Shard:
    """The same with a warm disk."""
    made = make_shard(warm=str(tmp_path / "warm"), evict={"target_free": "0B"})
    made.pin()
    made.look()
    made.look("warm")
    made.events.all.clear()
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The test's own monotonic clock; ask for it after the state that began before."""
    clock = Clock(time.monotonic())
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock
