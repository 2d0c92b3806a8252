"""`stoker replay`: a troubled history comes out the same, and what differs is told."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import processes_with_environment
from stoker.replay.replay_site import Site
from stoker.store.record import read_record, write_record
from support.once import made_once
from support.pipelines import opened
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

FORK, END, LAST = 10, 20, 26


@pytest.fixture(scope="module")
def troubled(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """A run that was killed, rolled back with a skip, and went on with another batch and rate."""
    home = made_once(tmp_path_factory, "troubled", lambda home: train_troubled(shard_sets, home))
    return TrainPipeline(opened(home))


def train_troubled(shard_sets: Path, home: Path) -> None:
    run = make_training(shard_sets, home, train__steps=END)
    daemon = run.start()
    os.kill(run.wait_for_step(12).pid, signal.SIGKILL)
    wait_until(lambda: run.record().get("state") == "finished", 90, "the end of the first history")
    assert daemon.stop() == 0, daemon.said()
    skip = f"{FORK + 2}:{FORK + 5}"
    assert exit_code(["rollback", str(run.data.file), str(FORK), "--skip", skip]) == 0
    run = make_training(
        shard_sets, home, train__steps=LAST, train__global_batch=6, train__optimizer={"lr": 1e-3}
    )
    ended = run.once()
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def repeated(troubled: TrainPipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a replay of it that was stopped once and then came to its end."""
    made = made_once(tmp_path_factory, "replayed", lambda home: stop_and_replay(troubled, home / "out"))
    return made / "out"


def stop_and_replay(troubled: TrainPipeline, out: Path) -> None:
    code = "from stoker.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", code, "replay", str(troubled.data.file), "main", str(out)]
    with troubled.trainer():
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = out / "run" / "log" / "metrics.jsonl"
    wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 8, 60, "a few steps")
    first.send_signal(signal.SIGTERM)
    printed, errors = first.communicate(timeout=120)
    assert first.returncode == 130, printed + errors
    assert "the same command continues from there" in printed
    assert processes_with_environment("STOKER_RUN_DIR", str(out / "run")) == []
    said = io.StringIO()
    with troubled.trainer(), contextlib.redirect_stdout(said):
        assert exit_code(["replay", str(troubled.data.file), "main", str(out), "--json"]) == 0
    (out / "report.json").write_text(said.getvalue())


def test_a_troubled_history_comes_out_the_same_even_when_the_replay_is_stopped(
    troubled: TrainPipeline, repeated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = repeated
    assert [event["exit_class"] for event in troubled.events("trainer_exited")].count("killed") == 1
    report = json.loads((out / "report.json").read_text())
    assert report["identical"] is True
    assert (report["run"], report["timeline"], report["to"], report["step"]) == ("main", 1, LAST, LAST)
    assert (report["phases"], report["rows"], report["differences"]) == (2, LAST, [])
    assert report["files"] == 2
    assert report["heldout_rows"] >= 3

    assert exit_code(["replay", str(troubled.data.file), "main", str(out)]) == 64
    assert "is a finished replay" in capsys.readouterr().err


def test_what_was_tampered_with_is_found(
    troubled: TrainPipeline, tmp_path: Path, repeated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(repeated, out, symlinks=True)
    told = read_record(out / "replay.json")
    weights = told["compared"]["files"]["model-00001.safetensors"]
    weights["sha256"] = f"{int(weights['sha256'], 16) ^ 1:064x}"
    write_record(out / "replay.json", {**told, "state": "running"})  # trained to its end, not compared yet
    loss = tamper_with_a_loss(Site(out, told).metrics, step=5)
    assert exit_code(["replay", str(troubled.data.file), "main", str(out)]) == 1
    said = capsys.readouterr().out
    assert f"NOT identical: {LAST} steps" in said
    assert f"step 5: loss is {loss * (1 + 1e-12)} in the record, {loss} in the replay" in said
    assert f"step {LAST}: model-00001.safetensors is {weights['sha256']} in the recorded" in said
    assert said.count(" in the replay\n") == 1


def test_what_cannot_be_replayed_is_refused_with_what_to_do(
    troubled: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()

    def refused(*arguments: Any) -> tuple[int, str]:
        code = exit_code(["replay", str(troubled.data.file), *map(str, arguments)])
        return code, capsys.readouterr().err

    code, why = refused("main", tmp_path / "mine")
    assert (code, "name a new directory" in why) == (64, True)
    code, why = refused("mian", tmp_path / "out")
    assert (code, "did you mean 'main'?" in why) == (64, True)
    code, why = refused("main", tmp_path / "out", "--to", 999)
    assert (code, f"write 1 to {LAST}" in why) == (64, True)


def tamper_with_a_loss(log: Path, step: int) -> float:
    """Change the last digits of a step's loss; returns what it was."""
    rows = [json.loads(line) for line in log.read_bytes().splitlines()]
    row = next(row for row in rows if row["step"] == step and "loss" in row)
    loss = float(row["loss"])
    row["loss"] = loss * (1 + 1e-12)
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return loss
