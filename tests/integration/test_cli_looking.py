"""`data plan`, `batch` and `where` beside a real run, which is killed once; the truth is counted apart.

The order is that of plan.jsonl alone: step k has windows (k - 1) * B to k * B of it, whatever was killed.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import signal_process
from stoker.provenance.where import find
from support.looking import Label, train_labels, window_labels
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

STEPS, BATCH, SEQ_LEN = 25, 64, 64


def order_of(run: TrainPipeline) -> list[list[Label]]:
    """The rows of every planned window, in the order of the plan."""
    paths = {source.key: path for path, source in run.data.sources().items()}
    shards = run.data.pipeline.hot_layout.shards("prose")
    order: list[list[Label]] = []
    for line in run.run.plan.read_text().splitlines():
        entry = json.loads(line)
        if "sets" in entry:
            stream = [
                label for key, _ in entry["sets"] for label in train_labels(shards / key[:16], paths[key])
            ]
            windows = range((len(stream) - 1) // entry["seq_len"])
            order += [window_labels(stream, entry["key"], entry["seq_len"], offset) for offset in windows]
    return order


def test_batch_and_where_tell_of_a_killed_run_what_its_plan_says_it_read(
    shard_sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_training(
        shard_sets, tmp_path, train__steps=STEPS, train__global_batch=BATCH, plan__segment_tokens=30_000
    )
    file = str(run.data.file)

    def ask(*arguments: str) -> dict[str, Any]:
        assert exit_code([*arguments, "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    daemon = run.start()
    try:
        trainer = run.wait_for_step(6)
        beside = ask("data", "batch", file, "main", "6")
        assert 6 <= ask("data", "plan", file)["step"] <= STEPS
        signal_process(trainer, signal.SIGKILL)
        wait_until(lambda: run.record()["state"] == "finished", 120, "the run's end")
    finally:
        daemon.stop()
    assert ask("data", "batch", file, "main", "6") | {"sealed": beside["sealed"]} == beside

    plan = ask("data", "plan", file)
    assert (plan["step"], plan["finished"], plan["windows"]["applied"]) == (STEPS, "steps", STEPS * BATCH)
    assert plan["epoch"] == 1
    assert {entry["state"] for entry in plan["entries"][:2]} == {"read"}
    order = order_of(run)
    seen: dict[Label, set[int]] = {}
    for step in range(1, STEPS + 1):
        windows = [
            [(part["source"], one["row"]) for part in window["sets"] for one in part["documents"]]
            for window in ask("data", "batch", file, "main", str(step))["windows"]
        ]
        assert windows == order[(step - 1) * BATCH : step * BATCH]
        for label in (label for labels in windows for label in labels):
            seen.setdefault(label, set()).add(step)
    for path in ("0.parquet", "1.parquet"):
        for row in range(0, 250, 9):
            found = find(run.data.pipeline, path, row)
            assert set(found["runs"][0]["steps"]) == seen.get((path, row), set())
            if found["fate"] == "train":
                epochs = {one["epoch"] for one in found["runs"][0]["windows"] if one["state"] == "applied"}
                assert 0 in epochs or found["runs"][0]["tail_of"]
