"""What a machine does to a train supervisor: it waits, says so, and goes on by itself."""

from __future__ import annotations

from pathlib import Path

from stoker.cli.main import exit_code
from support.training import make_training
from support.waiting import wait_until


def test_a_trainer_that_cannot_be_started_is_started_later_and_counts_as_no_launch(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = make_training(
        shard_sets, tmp_path / "unstarted", train__steps=10, supervise__no_progress_launches=1
    )
    pipeline = run.data.pipeline
    in_the_way = pipeline.runtime.notify_socket("main") / "x"
    in_the_way.mkdir(parents=True)
    daemon = run.start()
    try:
        wait_until(lambda: run.events("worker_not_started"), what="the finding")
        assert (run.record()["state"], run.record()["fruitless"]) == ("running", 0)
        wait_until(lambda: "cannot be started" in run.data.status("train_supervisor")["doing"], what="words")
        in_the_way.rmdir()
        in_the_way.parent.rmdir()
        wait_until(lambda: run.record()["state"] == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert exit_code(["runs", str(run.data.file)]) == 0
