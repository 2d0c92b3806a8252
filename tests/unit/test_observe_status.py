"""What onlookers see: status from locks and snapshots, memory of processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from stoker.kit.lock import Lock
from stoker.kit.process import Sample, own_peak_rss, sample_process
from stoker.observe.status import read_status
from stoker.store.layout import DAEMONS, STAGE_SHARD, RuntimeLayout, StateLayout


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path / "state")
    layout.create()
    return layout


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeLayout:
    runtime = RuntimeLayout.at(tmp_path / "run")
    runtime.create()
    return runtime


def test_daemons_that_never_ran_are_said_to_be_so(tmp_path: Path) -> None:
    status = read_status(StateLayout(tmp_path / "nothing here"))
    assert set(status) == set(DAEMONS)
    assert all(each["state"] == "never started" and each["body"] == {} for each in status.values())


def test_the_snapshot_is_found_through_the_lock_file(layout: StateLayout, runtime: RuntimeLayout) -> None:
    runtime.status(STAGE_SHARD).write_text(json.dumps({"text": "3 of 7"}))
    extra = {"runtime": str(runtime.root), "metrics": "127.0.0.1:9812"}
    with Lock.acquire(layout.lock(STAGE_SHARD), purpose=STAGE_SHARD, extra=extra):
        seen = read_status(layout)[STAGE_SHARD]
        assert seen["running"] and seen["pid"] == os.getpid() and seen["metrics"] == "127.0.0.1:9812"
        assert seen["body"] == {"text": "3 of 7"}
    seen = read_status(layout)[STAGE_SHARD]
    assert (seen["running"], seen["state"], seen["pid"], seen["metrics"]) == (False, "stopped", None, None)
    assert seen["body"] == {"text": "3 of 7"}, "the last that is known"


def test_a_command_in_the_daemons_place_is_not_the_daemon(layout: StateLayout) -> None:
    with Lock.acquire(layout.lock(STAGE_SHARD), purpose="command"):
        assert not read_status(layout)[STAGE_SHARD]["running"]


@pytest.mark.parametrize("content", [b"", b"{half", b"[1]"])
def test_a_snapshot_that_cannot_be_read_is_an_empty_one(
    layout: StateLayout, runtime: RuntimeLayout, content: bytes
) -> None:
    runtime.status(STAGE_SHARD).write_bytes(content)
    extra = {"runtime": str(runtime.root)}
    with Lock.acquire(layout.lock(STAGE_SHARD), purpose=STAGE_SHARD, extra=extra):
        assert read_status(layout)[STAGE_SHARD]["body"] == {}


def test_memory_is_sampled_for_this_process_and_another() -> None:
    mine = sample_process(os.getpid())
    assert mine.rss_bytes > 0 and mine.rss_bytes // 2 < own_peak_rss()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(b"up\n")
        assert child.stdout.readline() == b"up\n"  # only then it surely has its own memory, and some of it
        theirs = sample_process(child.pid)
        assert 0 < theirs.rss_bytes < mine.rss_bytes
    finally:
        child.kill()
        child.communicate()
    assert sample_process(child.pid) == Sample(0, 0.0)
