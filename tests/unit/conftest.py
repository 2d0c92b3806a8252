"""The stage-shard loop's state for tests in process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.pipelines import DataPipeline, make_pipeline
from support.shard_state import Clock, MakeShard, Shard

settings.register_profile("few", settings.default, max_examples=40)  # longer searches are marked long
settings.load_profile("few")


@pytest.fixture(scope="session")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DataPipeline]:
    """Makes pipelines without any state; each file is read and checked once."""
    known: dict[str, DataPipeline] = {}

    def make(number: int, **changes: Any) -> DataPipeline:
        name = f"{number} {sorted(changes.items())}"
        if name not in known:
            known[name] = make_pipeline(tmp_path_factory.mktemp("home"), **changes)
        data = known[name]
        for place in (data.pipeline.state, data.pipeline.hot, data.pipeline.warm):
            if place is not None:
                shutil.rmtree(place, ignore_errors=True)
        return data

    return make


@pytest.fixture
def make_shard(
    pipelines: Callable[..., DataPipeline], monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeShard]:
    """Makes states over pipelines of their own; nothing of them is to survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    made: list[Shard] = []

    def make(*, once: bool = False, **changes: Any) -> Shard:
        made.append(Shard(pipelines(len(made), **changes), once=once))
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
def warm_shard(make_shard: MakeShard) -> Shard:
    """The same with a warm disk."""
    made = make_shard(warm="warm", evict={"target_free": "0B"})
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


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Make folders within each other, deeper than Python recurses.

    They go at the end, also of a test that fails: pytest, which removes old trees a run later, cannot.
    """

    def make(top: Path) -> None:
        top.mkdir()
        folder = os.open(top, os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("d", dir_fd=folder)
            below = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = below
        os.close(folder)

    yield make
    subprocess.run(["rm", "-rf", tmp_path], check=True)
