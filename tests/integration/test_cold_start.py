"""A run whose data has left the hot disk: it says what it needs, waits for it, and trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.plan.consumption import read_holdings
from stoker.plan.log import read_plan
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.supervise.audit.audit import audit_run
from support.parquet import write_fineweb
from support.training import TrainPipeline, make_training
from support.waiting import wait_until
from support.warm_ground import EVERYTHING_OFF

ROOMY: dict[str, Any] = {"shard__release": "after_sync", "train__steps": 20}


def evicted(run: TrainPipeline) -> set[str]:
    return {path for path, source in run.data.sources().items() if source.evicted}


def test_a_second_run_has_the_sets_brought_back_that_the_first_is_done_with(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for part in ("state", "hot"):
        (home / part).mkdir(parents=True)
    first = make_training(home, home, warm=str(tmp_path / "warm"), **ROOMY)
    for number in range(2):
        write_fineweb(first.data.source / f"{number}.parquet", rows=120, seed=number)
    first.data.drain()
    assert first.once().returncode == 0

    make_training(home, home, warm=str(tmp_path / "warm"), evict=EVERYTHING_OFF, **ROOMY)
    loop = first.data.start(STAGE_SHARD)
    supervisor = None
    try:
        wait_until(lambda: len(evicted(first)) == 2, 60, "everything's leaving")
        loop.stop()
        second = make_training(
            home, home, warm=str(tmp_path / "warm"), evict=EVERYTHING_OFF, train__run="second", **ROOMY
        )
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
    before = first.run.plan.read_bytes()
    ours, theirs = read_plan(first.run.plan).segments[0], read_plan(layout.plan).segments[0]
    assert (ours.sets, ours.run_id != theirs.run_id) == (theirs.sets, True)
    layout.plan.write_bytes(before)
    ended = second.once()
    assert ended.returncode == 65 and "another run" in ended.stderr
    assert read_record(layout.record)["heldout"]["windows"] > 0
