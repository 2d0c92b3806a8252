"""What the supervisor does about a guard that does not answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.config.load import load_pipeline
from stoker.kit.loop import Waiter
from stoker.store.layout import StateLayout
from stoker.supervise.run.launch_record import Launch
from stokerd.supervision import launch as launch_watch
from stokerd.supervision.launch import GUARD_MARGIN_S, LaunchWatch
from support.config_files import write_pipeline


class Told:
    """Keeps the events, and what the guard was told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.guard: list[str] = []
        self.pid = 1

    def record(self, event: str, _level: str = "info", **_fields: Any) -> None:
        self.events.append(event)

    def stop(self) -> None:
        self.guard.append("stop")

    def kill(self) -> None:
        self.guard.append("kill")


def test_a_guard_that_is_stuck_is_asked_once_and_killed_long_after_the_stop_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline(write_pipeline(tmp_path))
    told = Told()
    context: Any = SimpleNamespace(
        events=told, pipeline=pipeline, layout=StateLayout(tmp_path / "state"), waiter=Waiter()
    )
    now = [1000.0]
    monkeypatch.setattr(launch_watch.time, "monotonic", lambda: now[0])
    turns: Any = SimpleNamespace(doing="")
    watch = LaunchWatch(context, turns, Launch("l1", 0, None, 0, tmp_path / "socket"))
    guard: Any = told

    watch.stop(guard)
    now[0] += pipeline.supervise.stop_time + GUARD_MARGIN_S
    watch.stop(guard)
    assert told.guard == ["stop"]
    now[0] += 1.0
    watch.stop(guard)
    watch.stop(guard)

    assert told.guard == ["stop", "kill"]
    assert told.events == ["trainer_stop_asked", "guard_stuck"]
