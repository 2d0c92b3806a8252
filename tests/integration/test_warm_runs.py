"""Whole runs over sets on hot and warm: what rots, vanishes or goes away under them, joins or is changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.records.sources import read_sources
from stoker.observe.status import read_status
from stoker.plan.consumption import read_holdings
from stoker.plan.log import read_plan
from stoker.plan.residency import held
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import read_record
from support.audits import audit_of
from support.once import made_once
from support.parquet import write_fineweb
from support.pipelines import DataPipeline
from support.training import TrainPipeline, small_trainer
from support.waiting import wait_until
from support.warm_ground import EVERYTHING_OFF, FILES, SETTINGS, Ground, at_work


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Sets on hot and warm, and a run over them that was left in peace. Tests work on copies."""
    return Ground(made_once(tmp_path_factory, "ground", Ground.make))


def planned_sets(run: TrainPipeline) -> list[Path]:
    """Where the sets of the plan lie on hot, in the plan's order."""
    keys = [key for entry in read_plan(run.run.plan).segments for key, _ in entry.sets]
    return [run.data.pipeline.hot_layout.shard_set("prose", key) for key in keys]


def rot(directory: Path) -> None:
    """Overwrite the tokens in place with ids that no tokenizer has, as a dying disk might."""
    for file in directory.glob("train-*.bin"):
        with file.open("r+b") as stream:
            stream.write(b"\xff" * file.stat().st_size)


def finish(run: TrainPipeline) -> None:
    """Wait until the plan is used up."""
    wait_until(lambda: run.record().get("state") == "finished", 120, "the end of the run")
    assert run.record()["finished"] == "data_exhausted"


def check_same(run: TrainPipeline, ground: Ground) -> None:
    """Every row and every bit as in the run that was left in peace."""
    assert run.rows() == ground.peace.rows()
    assert run.tensors() == ground.peace.tensors()
    assert audit_of(run.data.file)["findings"] == []


@pytest.mark.long
def test_a_set_that_rots_while_it_is_read_and_one_that_vanishes_come_back_from_warm(
    ground: Ground, tmp_path: Path
) -> None:
    run = TrainPipeline(ground.copy(tmp_path / "rot"))
    with at_work(run.data):
        run.wait_for_step(12)
        open_set, next_set, *_ = planned_sets(run)
        shutil.rmtree(next_set)
        rot(open_set)
        finish(run)
    assert next(event["exit_class"] for event in run.events("trainer_exited")) == "bad_data"
    damaged = {event["key"][:16]: event["path"] for event in run.events("shard_set_damaged")}
    assert damaged[open_set.name] == str(open_set)
    back = {event["key"] for event in run.data.events(STAGE_SHARD, "shard_set_hydrated")}
    assert back == {open_set.name, next_set.name}
    check_same(run, ground)


@pytest.mark.long
def test_a_run_goes_on_without_warm_over_what_is_built_again_from_its_source(
    ground: Ground, tmp_path: Path
) -> None:
    """The operator took warm out of the configuration: its copies are nobody's any more."""
    gone = {"warm": None, "shard__release": "never", "evict": {"target_free": None}}
    run = TrainPipeline(ground.copy(tmp_path / "rebuilt", **gone))
    shutil.rmtree(next(run.data.pipeline.hot_layout.shards("prose").iterdir()))
    shutil.rmtree(tmp_path / "rebuilt" / "warm")
    with at_work(run.data):
        finish(run)
    check_same(run, ground)


def test_training_goes_on_while_warm_is_away_and_nothing_is_lost_when_it_is_back(
    ground: Ground, tmp_path: Path
) -> None:
    run = TrainPipeline(ground.copy(tmp_path / "away"))
    warm, away = tmp_path / "away" / "warm", tmp_path / "away" / "elsewhere"
    last = run.data.sources()[f"{FILES - 1}.parquet"]
    with at_work(run.data) as daemons:
        run.wait_for_step(3)
        daemons[STAGE_SHARD].stop()
        warm.rename(away)
        shutil.rmtree(run.data.pipeline.hot_layout.shard_set("prose", str(last.key)))
        daemons[STAGE_SHARD] = run.data.start(STAGE_SHARD)
        waiting = wait_until(lambda: run.data.events(STAGE_SHARD, "warm_unavailable"), 60, "word of it")
        assert str(warm) in waiting[0]["path"]
        wait_until(lambda: doing(run).get("phase") == "wait-data", 60, "the end of what is on hot")
        assert run.last_step() > 40, "it trained on what is on hot"
        away.rename(warm)
        finish(run)
    assert len(run.events("trainer_launched")) == 1, "nobody had to stop for it"
    check_same(run, ground)


def doing(run: TrainPipeline) -> dict[str, Any]:
    """What the supervisor says it is doing or waiting for."""
    return dict(read_status(run.data.pipeline.layout)[TRAIN_SUPERVISOR]["body"])


def add_file(data: DataPipeline, name: str, seed: int) -> None:
    """Put a whole file into the source folder at once."""
    write_fineweb(data.home / "made" / name, rows=150, seed=seed).rename(data.source / name)


def of_train(**changes: Any) -> dict[str, Any]:
    return {"train": {**SETTINGS["train"], **changes}}


@pytest.mark.long
def test_files_join_while_it_trains_and_after_a_pause_it_goes_on_with_other_batches_and_windows(
    ground: Ground, tmp_path: Path
) -> None:
    here = {"dataset__source__path": str(tmp_path / "source"), "dataset__filters": {"min_chars": 20}}
    run = TrainPipeline(ground.copy(tmp_path, **here))
    for file in sorted(ground.made.source.iterdir()):
        (run.data.source / file.name).hardlink_to(file)
    daemons = {}
    try:
        with small_trainer():
            daemons = {name: run.data.start(name) for name in DAEMONS}
        run.wait_for_step(3)
        add_file(run.data, "0-and-a-half.parquet", 11)
        add_file(run.data, "9.parquet", 12)
        run.wait_for_step(14)
    finally:
        codes = [daemon.stop(40) for daemon in daemons.values()]
    assert codes == [0, 0, 0]
    paused_at = run.last_step()
    before = read_plan(run.run.plan)

    run = TrainPipeline(ground.again(tmp_path, **here, **of_train(seq_len=32, global_batch=24)))
    try:
        with small_trainer():
            daemons = {name: run.data.start(name) for name in DAEMONS}
        wait_until(lambda: run.record().get("state") == "finished", 120, "the end of the run")
    finally:
        codes = [daemon.stop(40) for daemon in daemons.values()]
    assert codes == [0, 0, 0]
    plan = read_plan(run.run.plan)
    assert plan.hashes[: len(before.hashes)] == before.hashes
    lengths = [segment.seq_len for segment in plan.segments]
    assert lengths == sorted(lengths, reverse=True)
    assert set(lengths) == {64, 32}
    sources = run.data.sources()
    assert len(sources) == FILES + 2
    keys = [key for segment in plan.segments for key, _ in segment.sets]
    assert sorted(keys) == sorted(str(source.key) for source in sources.values()), "each set once"
    added = [str(sources[name].key) for name in ("0-and-a-half.parquet", "9.parquet")]
    assert keys.index(added[0]) < keys.index(added[1])
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert paused_at in [event["resume_step"] for event in run.events("trainer_launched")]
    audit = audit_of(run.data.file)
    assert audit["findings"] == []
    assert audit["plan"]["applied"] == paused_at * 16 + (len(rows) - paused_at) * 24
    assert 0 <= audit["plan"]["remainder"] < 24


@pytest.mark.long
def test_a_second_run_over_the_same_sets_takes_none_away_from_the_first(
    ground: Ground, tmp_path: Path
) -> None:
    off = {"evict": EVERYTHING_OFF}
    run = TrainPipeline(ground.copy(tmp_path, **off))
    layout = run.data.pipeline.layout
    with at_work(run.data):
        run.wait_for_step(12)
    stopped_at = run.last_step()
    kept = held(one for one in read_holdings(layout) if one.run == "main")
    assert kept
    already = len(run.data.events(STAGE_SHARD, "shard_set_evicted"))

    other = ground.again(tmp_path, **off, **of_train(run="other", seed=7))
    second = layout.run("other")
    with at_work(other):
        wait_until(lambda: read_state(second.record) == "finished", 120, "the end of the second run")
        wait_until(lambda: on_warm_only(other) == all_keys(other) - kept, 120, "what nobody needs to leave")
    evicted = {event["key"] for event in other.events(STAGE_SHARD, "shard_set_evicted")[already:]}
    assert evicted == {key[:16] for key in all_keys(other) - kept}

    run = TrainPipeline(ground.again(tmp_path, **off))
    with at_work(run.data):
        wait_until(lambda: run.record().get("state") == "finished", 120, "the end of the first run")
    assert run.events("trainer_launched")[-1]["resume_step"] == stopped_at
    assert run.rows() == ground.peace.rows()
    assert run.tensors() == ground.peace.tensors()
    assert audit_of(run.data.file)["findings"] == []
    assert audit_of(other.file)["findings"] == []


def read_state(record: Path) -> str:
    try:
        return str(read_record(record)["state"])
    except FileNotFoundError:
        return ""


def all_keys(data: DataPipeline) -> set[str]:
    return {str(source.key) for source in read_sources(data.pipeline.layout, "prose").values()}


def on_warm_only(data: DataPipeline) -> set[str]:
    sources = read_sources(data.pipeline.layout, "prose").values()
    return {str(source.key) for source in sources if source.evicted}
