"""What a rehearsal takes, refuses and tells; what it makes of a pipeline file, and what is left of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from stoker.cli.rehearse import scratch as scratch_module
from stoker.cli.rehearse.figures import (
    Measured,
    at_end,
    chosen,
    strangers,
    told,
)
from stoker.cli.rehearse.kills import VICTIMS
from stoker.cli.rehearse.scratch import homes_of, scratch_of
from stoker.config.load import load_pipeline
from stoker.kit.lock import Lock
from stoker.store.errors import LockHeld, UnavailableError
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline

CARD = {"index": 1, "uuid": "GPU-1", "name": "H100", "figures": {"processes": {"7": 2 << 30}}}


@pytest.mark.parametrize(
    ("stall_s", "proof_s", "best"),
    [
        (1.0, 2.0, "6 min 56 s"),
        (0.0, 2.0, "2 s"),  # a save that costs nothing is made as often as it can be
        (4.5, 900.0, "15 min"),
    ],
)
def test_the_best_interval_is_youngs_and_never_shorter_than_a_save(
    tmp_path: Path, stall_s: float, proof_s: float, best: str
) -> None:
    seen = Measured({}, [1.0], [stall_s], [proof_s], [])
    rows = dict(told(make_pipeline(tmp_path).pipeline, seen))
    assert rows["best interval"] == f"{best} between checkpoints, at a failure a day"


@pytest.mark.parametrize(
    ("rates", "expected"),
    [([0.01], "about 18 hours"), ([0.01, 0.02, 0.02, 0.04, 0.04], "5 to 9 hours")],
)
def test_the_whole_run_is_a_range_by_the_speeds_of_its_steps(
    tmp_path: Path, rates: list[float], expected: str
) -> None:
    rows = dict(told(make_pipeline(tmp_path).pipeline, Measured({}, rates, [1.0], [1.0], [])))
    assert rows["whole run"] == f"10 steps, 640 tokens: done in {expected}"


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        ({"a": 300_000, "b": 250_000, "c": 10}, ["b"]),
        ({"a": 10, "b": 30, "c": 20}, ["c", "b"]),
        ({"a": 10}, ["a"]),
        ({}, []),
    ],
)
def test_the_smallest_file_that_does_is_taken_else_the_two_largest(
    tmp_path: Path, files: dict[str, int], taken: list[str]
) -> None:
    assert list(chosen(make_pipeline(tmp_path).pipeline, files)) == taken  # 400 entries want 200,000 bytes


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, {"state": 500, "hot": 7000}),
        ({"shard__release": "never"}, {"state": 500, "hot": 16_000}),
        ({"warm": "warm"}, {"state": 500, "warm": 7500}),
        ({"warm": "warm", "train__checkpoint": {"mirror": False}}, {"state": 500, "warm": 7000}),
        ({"train__checkpoint": {"keep_every": 2, "milestones": [3]}}, {"state": 1100, "hot": 7000}),
        ({"dataset__limit": {"tokens": 1000}}, {"state": 500, "hot": 2000}),
    ],
)
def test_a_disk_ends_with_the_sets_and_the_checkpoints_that_are_kept(
    tmp_path: Path, changes: dict[str, Any], sizes: dict[str, int]
) -> None:
    pipeline = make_pipeline(tmp_path, **changes).pipeline
    assert at_end(pipeline, sets=7000, parquet=9000, checkpoint=100) == sizes


@pytest.mark.parametrize(
    ("visible", "is_in_use"),
    [(None, True), ("0,1", True), ("GPU-1", True), ("0", False), ("", False), ("-1", False)],
)
def test_who_computes_on_a_card_that_the_trainer_sees_is_named(visible: str | None, is_in_use: bool) -> None:
    assert strangers([CARD], visible) == is_in_use * "pid 7 has 2.0 GiB on GPU 1 (H100)"
    assert not strangers([{**CARD, "figures": {"processes": None}}, {**CARD, "figures": {}}], visible)


BACK = dict.fromkeys(VICTIMS, "back")
FITS, FULL = ("/srv", 5 << 30, 8 << 30), ("/srv", 9 << 30, 8 << 30)


@pytest.mark.parametrize(
    ("kills", "disks", "is_good"),
    [(BACK, [FITS], True), (BACK | {"guard": ""}, [FITS], False), (BACK, [FITS, FULL], False)],
)
def test_all_that_was_killed_must_come_back_and_the_disks_must_suffice(
    tmp_path: Path, kills: dict[str, str], disks: list[tuple[str, int, int]], is_good: bool
) -> None:
    seen = Measured(kills, [64.0], [0.5], [2.0], disks)
    assert seen.is_good() is is_good
    rows = list(told(make_pipeline(tmp_path).pipeline, seen))
    assert [text for title, text in rows if title in VICTIMS and "not shown" in text] == [
        "not shown within the time; give it more --minutes" for back in kills.values() if not back
    ]
    if is_good:
        assert rows[len(VICTIMS) :] == [
            ("speed", "64 tokens/s, 1 s a step"),
            ("save", "training waits 0.5 s, proven 2.0 s after its begin"),
            ("whole run", "10 steps, 640 tokens: done in about 1 min"),
            ("disk", "/srv: about 5.0 GiB at the run's end, of 8.0 GiB"),
            ("best interval", "4 min 54 s between checkpoints, at a failure a day"),
        ]
    assert ("it does not fit" in dict(rows)["disk"]) is (FULL in disks)


def test_where_nothing_was_seen_the_kills_alone_are_told(tmp_path: Path) -> None:
    nothing = Measured(dict.fromkeys(VICTIMS, ""), [], [], [], [])
    assert [title for title, _ in told(make_pipeline(tmp_path).pipeline, nothing)] == list(VICTIMS)
    assert not nothing.is_good()


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """A rehearsal changes that of its process."""
    with patch.dict(os.environ):
        yield


def with_files(home: Path, **changes: Any) -> DataPipeline:
    data = make_pipeline(home, **changes)
    for number, name in enumerate(("a[1]", "b", "c")):
        write_fineweb(data.source / f"{name}.parquet", rows=20 + 20 * (number != 1), seed=number)
    return data


def test_the_scratch_pipeline_is_the_real_one_but_for_what_the_two_must_not_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {
        "warm": str(tmp_path / "warm"),
        "train__on_checkpoint": "backup.sh",
        "train__on_promoted": "publish.sh",
        "train__init_from": str(tmp_path / "step-000000010"),
        "metrics__ports": {"download": 9811, "shard": 9812, "train": 9813},
        "plan__epochs": 2,
        "train__optimizer": {"name": "muon"},
        "train__ema": {"decay": 0.9},
    }
    data = with_files(tmp_path / "p", **changes)
    monkeypatch.setenv("STOKER_TRAIN__SEQ_LEN", "48")
    monkeypatch.setenv("STOKER_TEST_STEP_S", "0.05")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/stoker/data")
    real = load_pipeline(data.file)
    with scratch_of(real, 10) as scratch:
        made, train = scratch.pipeline, scratch.pipeline.train
        assert (train.seq_len, train.model, train.optimizer) == (48, real.train.model, real.train.optimizer)
        assert train.init_from == real.train.init_from
        assert train.ema and (train.ema.decay, train.ema.from_step) == (0.9, 0), "its saves are as large"
        assert "STOKER_TRAIN__SEQ_LEN" not in os.environ
        assert os.environ["STOKER_TEST_STEP_S"] == "0.05"
        sockets = Path(os.environ["RUNTIME_DIRECTORY"])
        assert (sockets / "rehearsal.lock").exists()
        assert set(made.metrics.ports.model_dump().values()) == {0}
        assert (train.on_checkpoint, train.on_promoted) == (None, None)
        assert (made.plan.epochs, train.checkpoint.every) == (None, 10.0)
        assert made.dataset.source.include == ("c.parquet", "a?1?.parquet")
        assert made.dataset.limit.files == 2
        assert 0.5 < scratch.share < 1
        for key, home in scratch.homes.items():
            assert getattr(made, key) == home / key
            assert home.parent == getattr(real, key).parent
        assert not data.pipeline.state.exists()
    assert not sockets.exists()
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["data.yaml", "source"]
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_hot_inside_of_state_is_rehearsed_outside_of_both(tmp_path: Path) -> None:
    (tmp_path / "run/state/hot").mkdir(parents=True)
    real = {"state": tmp_path / "run/state", "hot": tmp_path / "run/state/hot", "warm": tmp_path / "new/warm"}
    homes = homes_of(real, "x")
    assert homes == {"state": tmp_path / "run/.x", "hot": tmp_path / "run/.x", "warm": tmp_path / ".x"}


def test_a_directory_that_is_a_whole_disk_is_refused() -> None:
    with pytest.raises(UnavailableError, match="hot: /proc is a whole disk"):
        homes_of({"hot": Path("/proc")}, "x")


def test_what_a_killed_one_left_is_swept_and_what_a_lock_holds_is_not(tmp_path: Path) -> None:
    data = with_files(tmp_path / "p")
    with scratch_of(data.pipeline, 10) as scratch:
        home = scratch.homes["state"]
        with pytest.raises(LockHeld, match="stoker rehearse"), scratch_of(data.pipeline, 10):
            pass
        assert scratch.pipeline.file.exists()
    left = [home / "state/locks", tmp_path / home.name / "hot"]  # the second before p was
    for directory in left:
        directory.mkdir(parents=True)
    lock = Lock.acquire(left[0] / "download_watchdog.lock", purpose="a killed one's daemon")
    with pytest.raises(LockHeld, match="a killed one's daemon"), scratch_of(data.pipeline, 10):
        pass
    assert left[1].exists()
    lock.release()
    with scratch_of(data.pipeline, 10):
        assert not any(directory.exists() for directory in left)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    data = with_files(tmp_path / "p")
    with scratch_of(data.pipeline, 10) as scratch:
        home = scratch.homes["state"]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").touch()
    home.symlink_to(tmp_path / "theirs")
    with scratch_of(data.pipeline, 10):
        assert not home.is_symlink()
    assert (tmp_path / "theirs/file").exists()


def test_without_room_or_files_it_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = with_files(tmp_path, stage__free_floor="3GiB")
    disk = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=3 << 30))
    monkeypatch.setattr(scratch_module, "shutil", disk)
    with pytest.raises(UnavailableError) as refused, scratch_of(data.pipeline, 10):
        pass
    assert f"{tmp_path} has no room for a rehearsal: it takes 3.3 GiB with stage.free_floor" in str(
        refused.value
    )
    assert "3.0 GiB are free" in str(refused.value)
    shutil.rmtree(data.source)
    data.source.mkdir()
    with (
        pytest.raises(UnavailableError, match="no files to rehearse"),
        scratch_of(data.pipeline, 10),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.yaml", "source"]
