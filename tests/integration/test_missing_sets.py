"""Shard sets that rot or vanish under a run that trains on them, and a warm disk that goes away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stoker.observe.status import read_status
from stoker.plan.log import read_plan
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from support.audits import audit_of
from support.training import TrainPipeline
from support.waiting import wait_until
from support.warm_ground import FILES, Ground, at_work


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


def test_without_warm_any_more_what_is_lost_is_built_again_from_its_source(
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
