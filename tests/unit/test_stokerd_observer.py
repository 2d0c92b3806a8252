"""A daemon's look at its processes and its machine: nothing there may stop or delay the daemon."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.store.layout import STAGE_SHARD, StateLayout
from stokerd.common import observer
from stokerd.common.observer import Observer


def observing(state: Path) -> tuple[Observer, list[str]]:
    """An observer of this process, and the warnings that it logs."""
    layout, warned = StateLayout(state), list[str]()
    layout.create()
    log = SimpleNamespace(warning=lambda word, message: warned.append(f"{word} {message}"))
    context: Any = SimpleNamespace(name=STAGE_SHARD, layout=layout, log=log)
    return Observer(context), warned


def daemon_of(watch: Observer) -> dict[str, Any]:
    daemon: dict[str, Any] = watch.sample({}, status={})["processes"]["daemon"]
    return daemon


def test_it_measures_and_keeps_rows_only_when_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "PATIENCE_S", 60.0)  # a busy machine takes its time
    watch, warned = observing(tmp_path / "state")
    seen = daemon_of(watch)
    assert seen["count"] == 1 and 0 < seen["pss_bytes"] <= seen["rss_bytes"]
    assert watch.sample({}, status={})["headroom_bytes"] > 0 and daemon_of(watch) is seen
    monkeypatch.setattr(observer, "LOOK_S", 0.0)
    watch._look_due = 0.0
    assert daemon_of(watch) is not seen
    rows = (tmp_path / "state/samples/stage_shard.csv").read_text().splitlines()
    assert len(rows) == 2 and "builder_rss_bytes" in rows[0] and not warned


def test_samples_that_cannot_be_written_are_told_once_and_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, warned = observing(tmp_path / "state")
    monkeypatch.setattr(observer, "LOOK_S", 0.0)
    monkeypatch.setattr(observer, "SAMPLE_S", 0.0)
    table = tmp_path / "state/samples/stage_shard.csv"
    table.mkdir()
    assert daemon_of(watch)["count"] == daemon_of(watch)["count"] == 1
    assert len(warned) == 1 and "samples_unwritable" in warned[0] and str(table) in warned[0]
    table.rmdir()
    daemon_of(watch)
    assert len(table.read_text().splitlines()) == 2
    table.unlink()
    table.parent.rmdir()
    daemon_of(watch)
    assert len(warned) == 2, "trouble after it worked is news"


def test_a_process_whose_memory_map_cannot_be_read_does_not_hold_up_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, _ = observing(tmp_path / "state")
    free, reads = threading.Event(), list[int]()

    def hangs(pid: int) -> int:
        reads.append(pid)
        free.wait()
        return 7

    monkeypatch.setattr(observer, "pss_of", hangs)
    monkeypatch.setattr(observer, "LOOK_S", 0.0)
    began = time.monotonic()
    for _ in range(20):
        seen = daemon_of(watch)
        assert seen["rss_bytes"] > 0 and seen["pss_bytes"] is None
    assert time.monotonic() - began < 5 and reads == [os.getpid()], "one thread waits, and nobody else"
    free.set()
    assert watch._sizes._thread is not None
    watch._sizes._thread.join()
    assert daemon_of(watch)["pss_bytes"] == 7

    free.clear()
    monkeypatch.setattr(observer, "SAMPLE_S", 0.0)
    watch._sample_due = 0.0
    daemon_of(watch)
    assert daemon_of(watch)["pss_bytes"] is None, "a size of a minute ago is not that of now"
    free.set()
