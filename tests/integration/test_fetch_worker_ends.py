"""The fetch worker killed, stopped, and on a bad disk: what is durable stays, and only that is claimed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.corpus.fetch.landing import PARTS
from stoker.store.record import read_record
from support.fetch_fixtures import (  # noqa: F401 - fixtures are found by their names
    CUT,
    SIZE,
    Start,
    content,
    durable,
    hub_fixture,
    landing_fixture,
    left,
    served_hub_fixture,
    start_fixture,
    until_durable,
)
from support.fetching import hub_file
from support.loopback_hub import LoopbackHub, noise
from support.mounts import WHY_NOT, apart

# When the worker goes


def test_a_killed_worker_is_gone_on_with_from_what_was_durable_and_not_from_what_rotted(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    names = ("whole", "rotten", "short", "wrong")
    files = whole, rotten, short, wrong = [
        hub_file(hub, f"{name}.parquet", noise(SIZE, i)) for i, name in enumerate(names)
    ]
    hub.fault("wrong", path=wrong.path, after=CUT)
    for file in files:
        hub.fault("stall", path=file.path, after=CUT)
    worker = start()
    worker.fetch(wrong)
    worker.until("mismatch")
    worker.fetch(whole, rotten, short)
    until_durable(worker, CUT, files)
    worker.kill()
    assert durable(landing) == {file.path: CUT for file in files}
    parts = {
        read_record(each)["path"]: each.with_suffix(".part") for each in (landing / PARTS).glob("*.json")
    }
    with parts[rotten.path].open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"rot")
    with parts[short.path].open("r+b") as stream:
        stream.truncate(CUT - 1)
    (landing / PARTS / "orphan.part").write_bytes(b"of nobody")
    hub.control("clear")
    hub.fault("wrong", path=wrong.path, after=2 * CUT, times=-1)
    worker = start(attempts=2)
    worker.fetch(*files)
    worker.until("done", count=3)
    worker.until("failed", wrong.path)
    assert worker.of("start", whole.path)[0]["offset"] == CUT and hub.served(whole.path) == SIZE
    assert [each["path"] for each in worker.of("anew")] == [rotten.path]
    assert [content(landing, file) for file in files[:3]] == [noise(SIZE, i) for i in range(3)]
    told = [(each["path"], each["about"]["count"]) for each in worker.of("mismatch")]
    assert told == [(wrong.path, 2)], "the count of wrong content survives a kill"
    assert left(landing) == []


def test_a_stop_keeps_every_byte_that_came(hub: LoopbackHub, landing: Path, start: Start) -> None:
    file = hub_file(hub, "stop.parquet", noise(SIZE, 1))
    hub.fault("stall", path="stop", after=CUT)
    worker = start(commit_s=3600.0)  # nothing is durable before the stop
    worker.fetch(file)

    def part_size() -> int:
        return sum(each.stat().st_size for each in (landing / PARTS).glob("*.part"))

    worker.until_true(lambda: part_size() and hub.served("stop") == CUT, "the first bytes")
    written = part_size()
    assert worker.stop().code == 75
    came = part_size()
    worker = start()
    kept = durable(landing)[file.path]
    assert written <= kept <= came  # one piece may have been under way
    worker.fetch(file)
    worker.until("done")
    # The rest of CUT was still the kernel's
    assert SIZE + CUT - came <= hub.served("stop") <= SIZE + CUT - kept


# When the disk is not as it should be


def test_a_landing_that_is_not_there_any_more_is_not_made_again(landing: Path, start: Start) -> None:
    worker = start(expected=True)
    worker.until_true(lambda: worker.ended is not None, "the worker's end")
    assert worker.ended is not None and worker.ended.code == 69
    assert not landing.exists()


def test_a_landing_that_vanishes_is_told_and_nothing_lands_elsewhere(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    file = hub_file(hub, "vanish.parquet", noise(SIZE, 1))
    hub.fault("stall", path="vanish", after=CUT)
    worker = start()
    worker.fetch(file)
    worker.until("progress")
    landing.rename(landing.with_name("away"))
    (landing / PARTS).mkdir(parents=True)  # as when another disk that was used so is mounted there
    hub.control("release")
    failed = worker.until("failed")
    assert failed["class"] == "gone"
    worker.until_true(lambda: worker.ended is not None, "the worker's end")
    assert (
        worker.ended is not None
        and worker.ended.code == 69
        and "mount the disk again" in worker.ended.reason()
    )
    assert [each.name for each in landing.rglob("*")] == [PARTS]


def test_a_worker_whose_landing_is_another_removes_nothing_there_and_ends(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    file = hub_file(hub, "away.parquet", noise(1000, 1))
    worker = start()
    worker.fetch(file)
    worker.until("done")
    landing.rename(landing.with_name("away"))
    landing.mkdir()
    (landing / file.path).write_bytes(b"another's")
    worker.worker.send({"remove": file.path})
    worker.until("not_removed")
    worker.until_true(lambda: worker.ended is not None, "the worker's end")
    assert worker.ended is not None and worker.ended.code == 69
    assert (landing / file.path).read_bytes() == b"another's"


@pytest.mark.root
def test_a_full_disk_is_told_and_the_fetch_goes_on_when_there_is_room(tmp_path: Path) -> None:
    command = apart([sys.executable, "-m", "support.full_landing", str(tmp_path)])
    if command is None:
        pytest.skip(WHY_NOT)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
