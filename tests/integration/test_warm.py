"""The stage-shard loop with a warm disk: copies, evictions and returns of shard sets, whatever goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.sources import Source, write_source
from stoker.observe.ledger import read_claims
from stoker.plan.consumption import consumed_body
from stoker.plan.positions import START
from stoker.shards.proof import prove_set
from stoker.store.layout import STAGE_SHARD, WarmLayout
from stoker.store.record import write_record
from stoker.store.requests import file_request, read_outcome
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import RunningDaemon
from support.waiting import wait_until

EVERYTHING_OFF = {"target_free": "1000TiB", "keep_hot_sets": 0}  # evict whatever may leave
NOTHING_OFF = {"target_free": "0B"}


def warm_pipeline(home: Path, **changes: object) -> DataPipeline:
    """A pipeline with a warm disk that releases parquet once it is copied."""
    given = {"warm": str(home / "warm"), "shard__release": "after_sync", "evict": NOTHING_OFF}
    return make_pipeline(home, **{**given, **changes})


class Copied:
    """Three sets, built and copied to warm, made once; each test works on a copy of state, hot and warm."""

    def __init__(self, home: Path) -> None:
        self.made = warm_pipeline(home)
        for number in range(3):
            write_fineweb(self.made.source / f"{number:03d}.parquet", 150, seed=number)
        self.made.drain()

    def copy(self, home: Path, **changes: object) -> DataPipeline:
        for part in ("state", "hot", "warm"):
            shutil.copytree(self.made.home / part, home / part, dirs_exist_ok=True)
        return self.again(home, **changes)

    def again(self, home: Path, **changes: object) -> DataPipeline:
        """The same source folder seen by a pipeline of another configuration."""
        return warm_pipeline(home, **{"dataset__source__path": str(self.made.source), **changes})


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    return Copied(tmp_path_factory.mktemp("copied"))


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
    body = consumed_body(
        run=run,
        checkpoint=None,
        body={"step": 0, "position": START.as_list(), "tokens": 0},
        books={},
        low_water=START,
        wants=tuple(keys),
        finished=None,
        windows_per_s=None,
    )
    write_record(layout.consumed, body)


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


def test_what_nobody_needs_leaves_hot_and_what_a_run_wants_comes_back(
    copied: Copied, tmp_path: Path
) -> None:
    data = copied.copy(tmp_path, evict=EVERYTHING_OFF)
    sets, before = data.sets(), data.sources()
    one, two, three = before.values()
    want(data, [str(two.key)])
    with at_work(data):
        wait_until(lambda: [s.evicted for s in data.sources().values()] == [True, False, True], 40.0, "room")
        want(data, [str(three.key), str(two.key)])
        wait_until(lambda: data.sources()[three.path].hot, 40.0, "the return")
    assert data.sources()[one.path].evicted
    assert not hot_set(data, one).exists()
    assert is_proven(hot_set(data, three), three)
    assert sets.items() >= data.sets().items()
    assert not list(data.pipeline.hot_layout.trash.iterdir())
    assert read_claims(data.pipeline.layout, STAGE_SHARD) == ()
