"""The stage-shard loop with a warm disk: copies, evictions and returns of shard sets, whatever goes wrong."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import Source, write_source
from stoker.observe.ledger import Claim, read_claims, write_claims
from stoker.plan.consumption import Holdings, consumed_body
from stoker.plan.log import Plan
from stoker.plan.positions import START
from stoker.shards.format.proof import prove_set
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR, WarmLayout
from stoker.store.record import write_record
from stoker.store.requests import file_request, read_outcome
from support.once import made_once
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline, opened
from support.processes import RunningDaemon
from support.sites import write_site
from support.waiting import wait_until
from support.warm_ground import EVERYTHING_OFF

NOTHING_OFF = {"target_free": "0B"}


def warm_pipeline(home: Path, **changes: object) -> DataPipeline:
    """A pipeline with a warm disk that releases parquet once it is copied."""
    given = {"warm": str(home / "warm"), "shard__release": "after_sync", "evict": NOTHING_OFF}
    return make_pipeline(home, **{**given, **changes})


class Copied:
    """Three sets, built and copied to warm; each test works on a copy of state, hot and warm."""

    def __init__(self, home: Path) -> None:
        self.made = opened(home)

    @staticmethod
    def make(home: Path) -> None:
        made = warm_pipeline(home)
        for number in range(3):
            write_fineweb(made.source / f"{number:03d}.parquet", 150, seed=number)
        made.drain()

    def copy(self, home: Path, **changes: object) -> DataPipeline:
        for part in ("state", "hot", "warm"):
            shutil.copytree(self.made.home / part, home / part, dirs_exist_ok=True)
        return self.again(home, **changes)

    def again(self, home: Path, **changes: object) -> DataPipeline:
        """The same source folder seen by a pipeline of another configuration."""
        return warm_pipeline(home, **{"dataset__source__path": str(self.made.source), **changes})


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    return Copied(made_once(tmp_path_factory, "copied", Copied.make))


@contextmanager
def at_work(data: DataPipeline) -> Iterator[RunningDaemon]:
    """The stage-shard loop, ended well."""
    daemon = data.start("stage_shard")
    try:
        yield daemon
    finally:
        assert daemon.stop() == 0


def hot_set(data: DataPipeline, source: Source) -> Path:
    return data.pipeline.hot_layout.shard_set("prose", str(source.key))


def warm_set(data: DataPipeline, source: Source) -> Path:
    return WarmLayout(data.home / "warm").shard_set("prose", str(source.key))


def want(data: DataPipeline, keys: Iterable[str], run: str = "main") -> None:
    """Say in a run's name, as its supervisor would, which sets it needs."""
    layout = data.pipeline.layout.run(run)
    layout.create()
    begin = {"step": 0, "position": START.as_list(), "tokens": 0}
    write_record(layout.consumed, consumed_body(Holdings(run, Plan((), ""), wants=tuple(keys)), None, begin))


def all_evicted(data: DataPipeline) -> bool:
    return all(source.evicted for source in data.sources().values())


def is_proven(directory: Path, source: Source) -> bool:
    proof = prove_set(directory, key=source.key)
    return (proof.verdict, proof.manifest_sha256) == ("proven", source.manifest_sha256)


def flip_a_bit(directory: Path) -> None:
    """Spoil the tokens of a set in place."""
    victim = directory / "train-00000.bin"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))


def test_proven_sets_are_copied_and_only_then_their_parquet_goes(copied: Copied) -> None:
    data = copied.made
    assert set(data.states().values()) == {"released"}
    for source in data.sources().values():
        assert source.hot
        assert source.on_warm
        assert is_proven(hot_set(data, source), source)
        assert is_proven(warm_set(data, source), source)
    events = [event["event"] for event in data.events("stage_shard")]
    for word in ("source_proven", "shard_set_synced", "source_released"):
        assert events.count(word) == 3
    assert events.index("shard_set_synced") < events.index("source_released")
    assert not list(data.pipeline.hot_layout.parquet.iterdir())


def test_what_nobody_needs_leaves_hot_and_what_a_run_wants_comes_back(copied: Copied, tmp_path: Path) -> None:
    data = copied.copy(tmp_path, evict=EVERYTHING_OFF)
    sets, before = data.sets(), data.sources()
    one, two, three = before.values()
    want(data, [str(two.key)])
    want(data, [str(three.key)], run="other")
    with at_work(data):
        wait_until(lambda: data.sources()[one.path].evicted, 60.0, "what neither run needs to leave")
        assert [source.hot for source in data.sources().values()] == [False, True, True]
        want(data, [], run="other")
        wait_until(lambda: data.sources()[three.path].evicted, 60.0, "room")
        want(data, [str(three.key), str(two.key)])
        wait_until(lambda: data.sources()[three.path].hot, 60.0, "the return")
    assert data.sources()[one.path].evicted
    assert not hot_set(data, one).exists()
    assert is_proven(hot_set(data, three), three)
    assert sets.items() >= data.sets().items()
    assert not list(data.pipeline.hot_layout.trash.iterdir())
    assert read_claims(data.pipeline.layout, STAGE_SHARD) == ()


def lost_on_warm(data: DataPipeline) -> list[dict[str, Any]]:
    return [lost for lost in data.events("stage_shard", "shard_set_lost") if lost.get("place") == "warm"]


def test_a_rotten_copy_on_warm_is_found_when_its_set_leaves_and_when_it_comes_back(
    copied: Copied, tmp_path: Path
) -> None:
    data = copied.copy(tmp_path)
    sets = data.sets()
    one, two, three = data.sources().values()
    for source in (one, two):
        flip_a_bit(warm_set(data, source))
    shutil.rmtree(hot_set(data, two))
    want(data, [str(two.key)])
    with at_work(data):
        wait_until(lambda: data.events("stage_shard", "shard_set_invalid"), 60.0, "the rotten copy")
        wait_until(lambda: data.sources()[two.path].on_warm, 60.0, "the set built anew and copied")
        assert data.sets() == sets
        assert is_proven(warm_set(data, two), two)
    data = copied.again(tmp_path, evict=EVERYTHING_OFF)
    with at_work(data):
        lost = wait_until(lambda: lost_on_warm(data), 60.0, "the other one")
        wait_until(lambda: data.sources()[three.path].evicted, 60.0, "room")
        wait_until(lambda: data.sources()[one.path].evicted, 60.0, "the set whose copy was made again")
    assert lost[0]["path"] == one.path
    assert "train-00000.bin: its sha256 differs" in lost[0]["reason"]
    assert is_proven(warm_set(data, one), one)


def test_a_set_that_is_lost_or_wrong_on_hot_comes_back_from_warm(copied: Copied, tmp_path: Path) -> None:
    data = copied.copy(tmp_path)
    sets = data.sets()
    one, two, three = data.sources().values()
    want(data, [str(source.key) for source in (one, two, three)])
    layout = data.pipeline.layout

    def asked(key: str) -> str:
        return file_request(layout, STAGE_SHARD, "prove_set", {"key": key, "reason": "an id too large"})

    with at_work(data):
        flip_a_bit(hot_set(data, one))
        shutil.rmtree(hot_set(data, two))
        requests = [asked(str(source.key)) for source in (one, two, three)] + [asked("0" * 64)]
        wait_until(lambda: all(read_outcome(layout, each) for each in requests), 60.0, "answers")
        verdicts = [read_outcome(layout, each)["verdict"] for each in requests]  # type: ignore[index]
        assert verdicts == ["invalid", "invalid", "proven", "unknown"]
        wait_until(lambda: all(source.hot for source in data.sources().values()), 60.0, "all of them")
    assert data.sets() == sets
    assert data.sources() == {source.path: source for source in (one, two, three)}
    assert [reason["reason"] for reason in data.reasons().values()] == ["set_invalid"]
    assert not data.events("stage_shard", "source_renewed")


def test_sets_whose_records_are_lost_are_taken_from_warm_as_they_are(copied: Copied, tmp_path: Path) -> None:
    data = copied.copy(tmp_path)
    sources = data.sources()
    shutil.rmtree(data.pipeline.layout.sources)
    shutil.rmtree(data.pipeline.hot_layout.shards("prose"))
    spoiled = sources["002.parquet"]
    flip_a_bit(warm_set(data, spoiled))

    ended = data.once("stage_shard")

    assert ended.returncode == 0, ended.stderr
    after = data.sources()
    for path in ("000.parquet", "001.parquet"):
        assert after[path] == replace(sources[path], evicted=True, engine=None)
    assert after["002.parquet"] == spoiled  # built again, and copied over the wrong one
    assert is_proven(warm_set(data, spoiled), spoiled)
    assert len(data.events("stage_shard", "source_proven")) == 3 + 1


def test_without_warm_any_more_what_is_lost_is_built_again_from_its_source(
    copied: Copied, tmp_path: Path
) -> None:
    """The operator took warm out of the configuration: its copies are nobody's any more."""
    data = copied.copy(tmp_path, warm=None, shard__release="never", evict={"target_free": None})
    sets, (one, other, *_) = data.sets(), data.sources().values()
    write_source(data.pipeline.layout, replace(one, evicted=True))
    for lost in (one, other):  # the other by its record lies on hot
        shutil.rmtree(hot_set(data, lost))
    shutil.rmtree(tmp_path / "warm")
    data.build()
    assert data.sets() == sets


class TestWarmAway:
    def test_everything_else_goes_on_and_what_waited_is_copied_when_it_is_back(
        self, copied: Copied, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        shutil.copytree(copied.made.source, source)
        data = copied.copy(tmp_path, dataset__source__path=str(source))
        (tmp_path / "warm").rename(tmp_path / "disk")
        (tmp_path / "warm").mkdir()  # the mount point
        write_fineweb(source / "003.parquet", 150, seed=3)
        data.receive()
        with at_work(data):
            told = wait_until(lambda: data.events("stage_shard", "warm_unavailable"), 60.0, "the word")
            assert "mount the disk" in told[0]["reason"]
            wait_until(lambda: data.states().get("003.parquet") == "proven", 60.0, "the set")
            assert not list((tmp_path / "warm").iterdir())
            assert all(each.hot for each in data.sources().values())
            (tmp_path / "warm").rmdir()
            (tmp_path / "disk").rename(tmp_path / "warm")
            wait_until(lambda: data.states()["003.parquet"] == "released", 60.0, "the copy")
            assert data.events("stage_shard", "warm_available")
        new = data.sources()["003.parquet"]
        assert is_proven(warm_set(data, new), new)

    def test_an_eviction_on_record_is_taken_back_while_warm_is_away_and_else_finished(
        self, copied: Copied, tmp_path: Path
    ) -> None:
        data = copied.copy(tmp_path)
        one, two, _ = data.sources().values()

        def intend(source: Source) -> None:
            write_source(data.pipeline.layout, replace(source, evicting=True))

        (tmp_path / "warm").rename(tmp_path / "disk")
        intend(one)
        with at_work(data):
            wait_until(lambda: data.sources()[one.path].hot, 60.0, "the set in use again")
        assert is_proven(hot_set(data, one), one)
        (tmp_path / "disk").rename(tmp_path / "warm")
        intend(one)
        intend(two)
        trash = data.pipeline.hot_layout.trash
        trash.mkdir()
        hot_set(data, two).rename(trash / f"{two.key16}-earlier")  # killed just after that
        (trash / "0123456789abcdef-older").mkdir()
        with at_work(data):
            wait_until(lambda: list(data.sources().values())[1].evicted, 60.0, "the end of one")
            wait_until(lambda: next(iter(data.sources().values())).evicted, 60.0, "the end of the other")
            wait_until(lambda: not list(trash.iterdir()), 60.0, "an empty trash")
        assert not hot_set(data, one).exists()


DIES_AT = """
import os, signal, sys
from pathlib import Path
if "stoker.shards.move.move_worker" in sys.orig_argv:
    from stoker.shards.move import moving
    points = Path(os.environ["DIES_AT"])
    def reached(point):
        left = points.read_text().split()
        if left[:1] != [point]:
            return
        try:
            Path(f"{points}-{os.getppid()}").mkdir()  # each daemon dies but once
        except FileExistsError:
            return
        points.write_text(" ".join(left[1:]))
        os.kill(os.getppid(), signal.SIGKILL)  # this worker ends with it
        signal.pause()
    def guarded(name, whole):
        def act(*args):
            reached(name + ":before")
            result = whole(*args)
            reached(name + ":after")
            return result
        return act
    for name in ("_into_trash", "_empty", "move_durably", "copy"):
        setattr(moving, name, guarded(name, getattr(moving, name)))
"""


def test_a_kill_in_any_phase_of_a_move_loses_nothing(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = copied.copy(tmp_path / "home", evict=EVERYTHING_OFF)
    sets, before = data.sets(), data.sources()
    keys = [str(source.key) for source in before.values()]
    write_site(tmp_path, DIES_AT)
    points = tmp_path / "points"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DIES_AT", str(points))

    def dies_at(*phases: str) -> None:
        """Let daemons die one after the other, each where the next phase is reached."""
        points.write_text(" ".join(phases))
        for left in range(len(phases) - 1, -1, -1):
            daemon = data.start("stage_shard")
            assert daemon.process.wait(40) == -signal.SIGKILL
            assert len(points.read_text().split()) == left

    want(data, [])
    dies_at("_into_trash:after", "_empty:after")
    with at_work(data):
        wait_until(lambda: all_evicted(data), 60.0, "an empty hot")
    assert not list(data.pipeline.hot_layout.trash.iterdir())
    want(data, keys)
    dies_at("move_durably:before", "move_durably:after")
    with at_work(data):
        wait_until(lambda: data.sources() == before, 60.0, "everything as it was")
    assert data.sets() == sets
    for source in before.values():
        assert is_proven(warm_set(data, source), source)


DIES_BEFORE_THE_RENAME = """
import os, signal, sys
if "stoker.shards.move.move_worker" in sys.orig_argv:
    from stoker.shards.move import moving
    moving.move_durably = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_worker_left_of_a_set_that_nobody_wants_any_more_goes(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = copied.copy(tmp_path / "home", evict=EVERYTHING_OFF)
    keys = [str(source.key) for source in data.sources().values()]
    want(data, [])
    with at_work(data):
        wait_until(lambda: all_evicted(data), 60.0, "an empty hot")
    write_site(tmp_path, DIES_BEFORE_THE_RENAME)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    want(data, keys)
    shards = data.pipeline.hot_layout.shards(data.pipeline.dataset.name)
    with at_work(data):
        wait_until(lambda: "hydrate_failed" in (data.home / "stage_shard.err").read_text(), 60.0, "a death")
        want(data, [])
        wait_until(lambda: not list(shards.glob(".tmp-*")), 60.0, "a tidy hot")


def test_who_names_sets_in_a_plan_is_not_disturbed(copied: Copied, tmp_path: Path) -> None:
    data = copied.copy(tmp_path, evict={**EVERYTHING_OFF, "keep_hot_sets": 1})
    lock = data.pipeline.layout.shard_sets_lock
    with lock.open("w") as planning:
        fcntl.flock(planning, fcntl.LOCK_SH)
        with at_work(data):
            wait_until(
                lambda: data.status().get("disks", {}).get("warm", {}).get("free_bytes"), 60.0, "a look"
            )
            seen_at = data.status()["uptime_s"]
            wait_until(lambda: data.status()["uptime_s"] > seen_at + 1, 60.0, "some turns")
            assert all(source.hot for source in data.sources().values())
            fcntl.flock(planning, fcntl.LOCK_UN)
            wait_until(lambda: sum(s.evicted for s in data.sources().values()) == 2, 60.0, "room")
    assert sum(source.hot for source in data.sources().values()) == 1


def test_room_that_another_daemon_claims_is_left_alone_until_it_claims_it_no_more(tmp_path: Path) -> None:
    data = warm_pipeline(tmp_path)
    write_fineweb(data.source / "a.parquet", 150, seed=1)
    data.receive()
    layout, device = data.pipeline.layout, tmp_path.stat().st_dev
    claim = Claim(device, str(layout.state), "checkpoints", 1 << 50)
    write_claims(layout, TRAIN_SUPERVISOR, [claim])
    with at_work(data):
        short = wait_until(lambda: data.events("stage_shard", "disk_short"), 60.0, "the shortage")
        assert "1024.0 TiB of that is claimed" in short[0]["reason"]
        told = wait_until(lambda: data.status().get("waits_for_room"), 60.0, "the status")
        assert told == short[0]["reason"].split("; free some")[0]
        assert data.states() == {"a.parquet": "seen"}
        write_claims(layout, TRAIN_SUPERVISOR, [])
        wait_until(lambda: data.states() == {"a.parquet": "released"}, 60.0, "the set")
        wait_until(lambda: data.events("stage_shard", "disk_enough"), 60.0, "the end of it")
        claims = read_claims(layout, STAGE_SHARD)
        assert not claims, claims


def test_a_disk_without_room_is_said_with_numbers_and_staging_waits(tmp_path: Path) -> None:
    disk = shutil.disk_usage(tmp_path)
    data = make_pipeline(tmp_path, stage__free_floor=f"{disk.total - (1 << 20)}B")  # more would be refused
    write_fineweb(data.source / "a.parquet", 60, seed=1)
    data.receive()
    ended = data.once("stage_shard")
    assert ended.returncode == 74
    short = data.events("stage_shard", "disk_short")
    assert len(short) == 1
    assert re.match(r"staging \S+ waits for space on hot: it takes", short[0]["reason"])
    assert f"{format_bytes(disk.total - (1 << 20))} stays free (stage.free_floor)" in short[0]["reason"]
    assert data.states() == {"a.parquet": "seen"}
