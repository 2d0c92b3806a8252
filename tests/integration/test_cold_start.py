"""A run whose data has left the hot disk: it says what it needs, waits for it, and trains on it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records.sources import write_source
from stoker.plan.consumption import read_holdings
from stoker.plan.log import read_plan
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.supervise.audit.audit import audit_run
from support.once import made_once
from support.training import TrainPipeline
from support.waiting import wait_until
from support.warm_ground import EVERYTHING_OFF, SETTINGS, Ground


def evict(run: TrainPipeline) -> None:
    """What the stage-shard loop does once the run is done with its sets: test_warm has its real ways."""
    for source in run.data.sources().values():
        assert source.on_warm
        shutil.rmtree(run.data.pipeline.hot_layout.shard_set("prose", str(source.key)))
        write_source(run.data.pipeline.layout, replace(source, evicted=True))


def test_a_second_run_has_the_sets_brought_back_that_the_first_is_done_with(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ground = Ground(made_once(tmp_path_factory, "ground", Ground.make))
    first = TrainPipeline(ground.copy_of_peace(tmp_path, evict=EVERYTHING_OFF))
    evict(first)
    loop = supervisor = None
    try:
        train = {**SETTINGS["train"], "run": "second", "steps": 20, "evaluate": {"tokens": 512}}
        second = TrainPipeline(ground.again(tmp_path, evict=EVERYTHING_OFF, plan={}, train=train))
        supervisor = second.start()
        wait_until(
            lambda: "bringing back" in second.data.status(TRAIN_SUPERVISOR).get("doing", ""),
            30,
            "what it waits for",
        )
        (holdings,) = [one for one in read_holdings(second.data.pipeline.layout) if one.run == "second"]
        assert holdings.wants
        loop = second.data.start(STAGE_SHARD)
        layout = second.data.pipeline.layout.run("second")
        wait_until(lambda: layout.record.exists() and read_record(layout.record)["finished"], 90, "its end")
    finally:
        for daemon in (supervisor, loop):
            if daemon is not None and daemon.process.poll() is None:
                daemon.stop()
    assert audit_run(second.data.pipeline).findings == ()
    # Each has a plan of its own, over the same sets; the plan of one is no plan for the other.
    ours, theirs = read_plan(first.run.plan).segments[0], read_plan(layout.plan).segments[0]
    assert (ours.sets, ours.run_id != theirs.run_id) == (theirs.sets, True)
    assert read_record(layout.record)["heldout"]["windows"] > 0
