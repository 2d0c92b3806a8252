"""The stage-shard loop when its workers fail: what the machine says decides, and nobody else is disturbed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.kit.lock import read_holder
from stoker.observe.machine import MemoryWatch
from support.cgroups import cgroup_of, inside
from support.mischief import Mischief
from support.mounts import WHY_NOT, apart
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.processes import RunningDaemon, daemon_command, start_daemon
from support.waiting import LONG_S, wait_until

LOOP = "stage_shard"
TWO = {"000.parquet": "released", "001.parquet": "released"}


@pytest.fixture
def mischief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mischief:
    made = Mischief(tmp_path / "mischief")
    monkeypatch.setenv("PYTHONPATH", str(made.directory))
    return made


def files(tmp_path: Path, *names: str, **changes: object) -> DataPipeline:
    data = make_pipeline(tmp_path, **changes)
    for number, name in enumerate(names):
        write_fineweb(data.source / f"{name}.parquet", 60, seed=number)
    data.receive()
    return data


@contextlib.contextmanager
def running(data: DataPipeline) -> Iterator[RunningDaemon]:
    daemon = data.start(LOOP)
    try:
        yield daemon
    finally:
        code = daemon.stop()
    assert code == 0


def metrics(data: DataPipeline) -> str:
    holder = read_holder(data.pipeline.layout.lock(LOOP))
    assert holder is not None
    return str(urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics").read().decode())


def ends(data: DataPipeline, kind: str) -> list[str]:
    return [
        line
        for line in metrics(data).splitlines()
        if "worker_ends_total{" in line and f'class="{kind}"' in line and not line.endswith(" 0.0")
    ]


def test_each_file_is_judged_by_what_became_of_its_own_workers(
    drained: Template, tmp_path: Path, mischief: Mischief
) -> None:
    if MemoryWatch().sample().headroom_bytes < 2 << 30:
        pytest.skip("needs 2 GiB of memory to spare")
    names = ("bus", "fat", "full", "good", "killed", "vanishing")
    data = files(tmp_path, *names, tokenizer=drained.tokenizer, shard__memory={"hard": "320MiB"})
    mischief.plan("die", "bus", signal.SIGBUS, times=99)
    mischief.plan("fat", "fat", 340, times=99)
    mischief.plan("full", "full")
    mischief.plan("die", "killed", signal.SIGKILL, times=3)
    mischief.plan("die", "vanishing", signal.SIGBUS)
    good = {f"{name}.parquet": "released" for name in names}
    with running(data):
        wait_until(lambda: mischief.tries("vanishing"), 2 * LONG_S, "the file that is to vanish")
        for file in data.pipeline.hot_layout.parquet.glob("vanishing*"):
            file.unlink()
        bad = {"bus.parquet": "quarantined", "fat.parquet": "quarantined"}
        wait_until(lambda: data.states() == {**good, **bad}, 2 * LONG_S, what="an end of each")
        assert ends(data, "over_memory") and ends(data, "killed")[0].endswith(" 3.0")
    reasons = {path: reason["reason"] for path, reason in data.reasons().items()}
    assert reasons == {"bus.parquet": "worker_died", "fat.parquet": "out_of_memory"}
    rows = {name: [rows for rows, _ in mischief.tries(name)] for name in names}
    assert rows["fat"] == [250, 60, 15, 15]
    assert rows["killed"] == [250] * 4
    assert len(rows["bus"]) in (2, 3), "twice with the reference engine, perhaps once with the fast one"
    assert len(rows["good"]) == 1
    assert not data.sources()["vanishing.parquet"].deaths
    (waits,) = data.events(LOOP, "source_waits_for_memory")
    assert waits["path"] == "fat.parquet"
    assert not data.events(LOOP, "memory_ladder_down"), "fat files say nothing about the machine"
    (full,) = data.events(LOOP, "disk_full")
    assert (full["place"], full["activity"]) == ("hot", "build")
    assert len(data.events(LOOP, "disk_has_room")) == 1


def workers(daemon: RunningDaemon, *, listers: bool) -> list[psutil.Process]:
    """The loop's listers, or its other workers."""
    found = []
    for each in psutil.Process(daemon.pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended
            found += [each] if ("lister_worker" in " ".join(each.cmdline())) is listers else []
    return found


def test_failed_allocations_bring_the_ladder_down_to_a_pause_that_ends_by_itself(
    drained: Template, tmp_path: Path, mischief: Mischief
) -> None:
    """Nor does a loop end that can start no process, or whose lister a service manager stopped first."""
    data = files(tmp_path, "000", "001", tokenizer=drained.tokenizer, shard__workers=1)
    mischief.plan("refuse", "000", times=3)
    with running(data) as daemon:
        wait_until(lambda: data.events(LOOP, "memory_paused"), what="the pause")
        wait_until(lambda: "memory" in data.status().get("paused", {}), what="the status")
        assert 'stoker_paused{reason="memory"} 1.0' in metrics(data)
        wait_until(lambda: data.states() == TWO, what="both files")
        wait_until(lambda: 'reason="memory"} 0.0' in metrics(data), what="the end of the pause")
        (first,) = workers(daemon, listers=True)
        first.terminate()
        wait_until(
            lambda: [one for one in workers(daemon, listers=True) if one.pid != first.pid],
            what="another lister",
        )
        # The workers that idle are sent away, so that new ones have to be started.
        for worker in workers(daemon, listers=False):
            worker.kill()
        wait_until(lambda: len(psutil.Process(daemon.pid).children()) == 1, what="the lister alone")
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        held = {int(each.name) for each in Path(f"/proc/{daemon.pid}/fd").iterdir()}
        sixth = sorted(set(range(len(held) + 6)) - held)[5]  # of those free; a worker's start takes more
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (sixth + 1, limits[1]))
        write_fineweb(data.source / "002.parquet", 60, seed=2)
        data.receive()
        wait_until(lambda: "worker_not_started" in daemon.said(), what="the trouble told")
        assert data.states().get("002.parquet") != "released"
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: data.states() == {**TWO, "002.parquet": "released"}, what="the third set")
    assert [rows for rows, _ in mischief.tries("000")][:3] == [250, 60, 15]
    assert len(data.events(LOOP, "memory_ladder_down")) == 2
    assert len(data.events(LOOP, "memory_resumed")) == 1
    assert not data.reasons()


@pytest.mark.root
def test_what_the_kernel_kills_in_a_full_cgroup_ran_out_of_memory(
    drained: Template, tmp_path: Path, mischief: Mischief
) -> None:
    how = {"tokenizer": drained.tokenizer, "shard__workers": 1, "shard__memory": {"hard": "4GiB"}}
    data = files(tmp_path, "000", "001", **how)
    mischief.plan("fat", "000", 700)
    with cgroup_of(400 << 20) as group:
        daemon = start_daemon([*inside(group), *daemon_command(LOOP, data.file)], tmp_path / "loop.err")
        try:
            wait_until(lambda: data.states() == TWO, what="both files")
            assert ends(data, "out_of_memory")
        finally:
            assert daemon.stop() == 0
    (down,) = data.events(LOOP, "memory_ladder_down")
    assert "SIGKILL" in down["reason"] and down["headroom_bytes"] < 400 << 20
    assert [rows for rows, _ in mischief.tries("000")] == [250, 60]
    assert not data.reasons()


STATE_FULL = """
import sys
from pathlib import Path
from integration.test_failure_policy import state_fills_and_drains
state_fills_and_drains(Path(sys.argv[1]))
"""


@pytest.mark.long
@pytest.mark.root
def test_on_a_full_state_disk_events_go_on_and_new_work_waits(tmp_path: Path) -> None:
    command = apart([sys.executable, "-c", STATE_FULL, str(tmp_path)])
    if command is None:
        pytest.skip(WHY_NOT)
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": tests}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def state_fills_and_drains(home: Path) -> None:
    """In mounts of its own: a state disk of 32 MiB that is full for a while."""
    from support.mounts import mount_small

    mount_small(home / "state", 32 << 20)
    data = files(home, "000", "001")
    with running(data):
        wait_until(lambda: data.states() == TWO, what="both files")
        filler: Any
        with (home / "state" / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        wait_until(lambda: data.events(LOOP, "state_disk_full"), what="the event on the full disk")
        wait_until(lambda: "disk_state" in data.status()["paused"], what="the status")
        assert 'reason="disk_state"} 1.0' in metrics(data)
        write_fineweb(data.source / "002.parquet", 150, seed=9)
        data.receive()
        until = time.monotonic() + 3
        wait_until(lambda: time.monotonic() > until)
        assert data.states().get("002.parquet", "seen") == "seen", "nothing new is begun"
        (home / "state" / "filler").unlink()
        wait_until(lambda: data.events(LOOP, "state_disk_has_room"), what="room")
        wait_until(lambda: data.states() == {**TWO, "002.parquet": "released"}, what="the third file")
