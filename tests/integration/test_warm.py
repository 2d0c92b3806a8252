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
from support.pipelines import DataPipeline, Template, make_pipeline, opened
from support.processes import RunningDaemon
from support.sites import write_site
from support.waiting import LONG_S, wait_until
from support.warm_ground import EVERYTHING_OFF

NOTHING_OFF = {"target_free": "0B"}


def warm_pipeline(home: Path, **changes: object) -> DataPipeline:
    """A pipeline with a warm disk that releases parquet once it is copied."""
    given = {"warm": str(home / "warm"), "shard__release": "after_sync", "evict": NOTHING_OFF}
    return make_pipeline(home, **{**given, **changes})


class Copied:
    """Three sets, built and copied to warm; each test works on a copy of state, hot and warm."""

    def __init__(self, home: Path, tokenizer: dict[str, str]) -> None:
        self.made, self.tokenizer = opened(home), tokenizer

    @staticmethod
    def make(home: Path, tokenizer: dict[str, str]) -> None:
        made = warm_pipeline(home, tokenizer=tokenizer)
        for number in range(3):
            write_fineweb(made.source / f"{number:03d}.parquet", 80, seed=number)
        made.drain()

    def copy(self, home: Path, **changes: object) -> DataPipeline:
        for part in ("state", "hot", "warm"):
            shutil.copytree(self.made.home / part, home / part, dirs_exist_ok=True)
        return self.again(home, **changes)

    def again(self, home: Path, **changes: object) -> DataPipeline:
        """The same source folder seen by a pipeline of another configuration."""
        about = {"dataset__source__path": str(self.made.source), "tokenizer": self.tokenizer}
        return warm_pipeline(home, **{**about, **changes})


@pytest.fixture(scope="module")
def copied(drained: Template, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    tokenizer = drained.tokenizer
    home = made_once(tmp_path_factory, "copied", lambda home: Copied.make(home, tokenizer))
    return Copied(home, tokenizer)


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


def lost_on_warm(data: DataPipeline) -> list[dict[str, Any]]:
    return [lost for lost in data.events("stage_shard", "shard_set_lost") if lost.get("place") == "warm"]


# While a file is there.
DIES_BEFORE_THE_RENAME = """
import os, signal, sys
if "stoker.shards.move.move_worker" in sys.orig_argv:
    from stoker.shards.move import moving
    whole = moving.move_durably
    def move_durably(*args):
        if os.path.exists(os.environ["DIES"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args)
    moving.move_durably = move_durably
"""


def test_what_nobody_needs_leaves_hot_and_what_a_run_wants_comes_back(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one who names sets in a plan disturbed, and what a killed worker left goes."""
    data = copied.copy(tmp_path / "home", evict=EVERYTHING_OFF)
    sets, before = data.sets(), data.sources()
    one, two, three = before.values()
    dies = tmp_path / "dies"
    write_site(tmp_path, DIES_BEFORE_THE_RENAME)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DIES", str(dies))
    want(data, [str(two.key)])
    want(data, [str(three.key)], run="other")
    flip_a_bit(warm_set(data, one))
    with data.pipeline.layout.shard_sets_lock.open("w") as planning:
        fcntl.flock(planning, fcntl.LOCK_SH)
        with at_work(data):
            wait_until(
                lambda: data.status().get("disks", {}).get("warm", {}).get("free_bytes"), what="a look"
            )
            seen_at = data.status()["uptime_s"]
            wait_until(lambda: data.status()["uptime_s"] > seen_at + 1, what="some turns")
            assert all(source.hot for source in data.sources().values())
            fcntl.flock(planning, fcntl.LOCK_UN)
            (lost,) = wait_until(lambda: lost_on_warm(data), what="the rotten copy of a set that leaves")
            wait_until(lambda: data.sources()[one.path].evicted, what="what neither run needs to leave")
            assert (lost["path"], "train-00000.bin: its sha256 differs" in lost["reason"]) == (one.path, True)
            assert is_proven(warm_set(data, one), one), "the copy was made again"
            assert [source.hot for source in data.sources().values()] == [False, True, True]
            want(data, [], run="other")
            wait_until(lambda: data.sources()[three.path].evicted, what="room")
            dies.touch()
            want(data, [str(three.key), str(two.key)])
            told = data.home / "stage_shard.err"
            wait_until(lambda: "hydrate_failed" in told.read_text(), what="a worker's death")
            want(data, [str(two.key)])
            shards = data.pipeline.hot_layout.shards(data.pipeline.dataset.name)
            wait_until(lambda: not list(shards.glob(".tmp-*")), what="a tidy hot")
            dies.unlink()
            want(data, [str(three.key), str(two.key)])
            wait_until(lambda: data.sources()[three.path].hot, what="the return")
    assert data.sources()[one.path].evicted
    assert not hot_set(data, one).exists()
    assert is_proven(hot_set(data, three), three)
    assert sets.items() >= data.sets().items()
    assert not list(data.pipeline.hot_layout.trash.iterdir())
    assert read_claims(data.pipeline.layout, STAGE_SHARD) == ()


def test_with_warm_away_all_else_goes_on_and_what_waited_is_copied_when_it_is_back(
    copied: Copied, tmp_path: Path
) -> None:
    source, warm = tmp_path / "source", tmp_path / "warm"
    shutil.copytree(copied.made.source, source)
    data = copied.copy(tmp_path, dataset__source__path=str(source))
    layout, before = data.pipeline.layout, data.sources()
    one = before["000.parquet"]
    disk = warm.rename(tmp_path / "disk")
    warm.mkdir()  # the mount point
    write_source(layout, replace(one, evicting=True))  # which is taken back
    write_fineweb(source / "003.parquet", 80, seed=3)
    data.receive()
    claim = Claim(tmp_path.stat().st_dev, str(layout.state), "checkpoints", 1 << 50)
    write_claims(layout, TRAIN_SUPERVISOR, [claim])  # of another daemon, who is left that room
    with at_work(data):
        told = wait_until(lambda: data.events("stage_shard", "warm_unavailable"), what="the word")
        assert "mount the disk" in told[0]["reason"]
        short = wait_until(lambda: data.events("stage_shard", "disk_short"), what="the shortage")
        reason = short[0]["reason"]
        assert re.match(r"staging \S+ waits for space on hot: it takes", reason)
        assert "1024.0 TiB of that is claimed" in reason
        assert "1.0 MiB stays free (stage.free_floor)" in reason
        told_so = reason.split("; free some")[0]
        wait_until(lambda: data.status().get("waits_for_room") == told_so, what="the status")
        assert data.states()["003.parquet"] == "seen"
        write_claims(layout, TRAIN_SUPERVISOR, [])
        wait_until(lambda: data.states()["003.parquet"] == "proven", what="the set")
        wait_until(lambda: data.events("stage_shard", "disk_enough"), what="the end of it")
        assert not list(warm.iterdir())
        assert all(each.hot for each in data.sources().values())
        assert is_proven(hot_set(data, one), one)
        warm.rmdir()
        disk.rename(warm)
        wait_until(lambda: data.states()["003.parquet"] == "released", what="the copy")
        assert data.events("stage_shard", "warm_available")
        assert (read_claims(layout, STAGE_SHARD), lost_on_warm(data)) == ((), [])
        comes_back_from_warm_or_from_its_source(data, before)
    new = data.sources()["003.parquet"]
    assert is_proven(warm_set(data, new), new)


def comes_back_from_warm_or_from_its_source(data: DataPipeline, before: dict[str, Source]) -> None:
    """A set that is lost or wrong on hot, and then one whose copy on warm is rotten as well."""
    sets, layout = data.sets(), data.pipeline.layout
    one, two, three = before.values()
    want(data, [str(source.key) for source in before.values()])

    def verdicts(*keys: str) -> list[str]:
        about = [{"key": key, "reason": "an id too large"} for key in keys]
        asked = [file_request(layout, STAGE_SHARD, "prove_set", args) for args in about]
        wait_until(lambda: all(read_outcome(layout, each) for each in asked), what="answers")
        return [read_outcome(layout, each)["verdict"] for each in asked]  # type: ignore[index]

    def are_as_before() -> bool:
        return before.items() <= data.sources().items() and data.sets() == sets

    flip_a_bit(hot_set(data, one))
    shutil.rmtree(hot_set(data, two))
    keys = [str(source.key) for source in (one, two, three)]
    assert verdicts(*keys, "0" * 64) == ["invalid", "invalid", "proven", "unknown"]
    wait_until(are_as_before, what="all of them")
    assert [reason["reason"] for reason in data.reasons().values()] == ["set_invalid"]
    assert not data.events("stage_shard", "source_renewed")
    flip_a_bit(warm_set(data, two))
    shutil.rmtree(hot_set(data, two))
    assert verdicts(str(two.key)) == ["invalid"]
    wait_until(lambda: is_proven(warm_set(data, two), two) and are_as_before(), what="the set built anew")


def test_sets_whose_records_are_lost_are_taken_from_warm_as_they_are(copied: Copied, tmp_path: Path) -> None:
    data = copied.copy(tmp_path)
    sources, trash = data.sources(), data.pipeline.hot_layout.trash
    one, leaving, spoiled = sources.values()
    for lost in (one, spoiled):  # as are their records
        shutil.rmtree(hot_set(data, lost))
        data.pipeline.layout.source("prose", lost.path).unlink()
    flip_a_bit(warm_set(data, spoiled))
    write_source(data.pipeline.layout, replace(leaving, evicting=True))
    (trash / "0123456789abcdef-older").mkdir(parents=True)
    hot_set(data, leaving).rename(trash / f"{leaving.key16}-earlier")  # killed just after that

    ended = data.once("stage_shard")

    assert ended.returncode == 0, ended.stderr
    assert data.sources() == {
        one.path: replace(one, evicted=True, engine=None),
        leaving.path: replace(leaving, evicted=True),
        spoiled.path: spoiled,  # built again, and copied over the wrong one
    }
    assert is_proven(warm_set(data, spoiled), spoiled)
    assert len(data.events("stage_shard", "source_proven")) == 3 + 1
    assert not list(trash.iterdir())


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


@pytest.mark.parametrize(
    ("leaving", "coming"),
    [
        (["_into_trash:before"], ["move_durably:before"]),
        pytest.param(
            ["_into_trash:after", "_empty:after"],
            ["move_durably:before", "move_durably:after"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_kill_in_any_phase_of_a_move_loses_nothing(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaving: list[str], coming: list[str]
) -> None:
    data = copied.copy(tmp_path / "home", evict=EVERYTHING_OFF)
    sets, before = data.sets(), data.sources()
    write_site(tmp_path, DIES_AT)
    points = tmp_path / "points"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DIES_AT", str(points))

    def dies_at(phases: list[str], daemon: RunningDaemon) -> RunningDaemon:
        """Each daemon dies where the next phase is reached; the one that follows the last."""
        points.write_text(" ".join(phases))
        want(data, [] if phases is leaving else [str(source.key) for source in before.values()])
        for left in range(len(phases) - 1, -1, -1):
            assert daemon.process.wait(LONG_S) == -signal.SIGKILL
            assert len(points.read_text().split()) == left
            daemon = data.start("stage_shard")
        return daemon

    want(data, [str(source.key) for source in before.values()])
    points.touch()
    daemon = dies_at(leaving, data.start("stage_shard"))
    wait_until(lambda: all(source.evicted for source in data.sources().values()), what="an empty hot")
    wait_until(lambda: not list(data.pipeline.hot_layout.trash.iterdir()), what="an empty trash")
    daemon = dies_at(coming, daemon)
    wait_until(lambda: data.sources() == before, what="everything as it was")
    assert daemon.stop() == 0
    assert data.sets() == sets
    for source in before.values():
        assert is_proven(warm_set(data, source), source)
