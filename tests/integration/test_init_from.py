"""A run that begins with the parameters of another: its record, its refusals, its life without the source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.store.direct import hash_file
from stoker.store.record import read_record
from stoker.training.model.shape import Shape
from support.model_directories import list_sums, write_model
from support.training import TrainPipeline, make_training

NEWEST = "step-000000060"


def begun(finished: TrainPipeline, home: Path, source: Path, **changes: Any) -> TrainPipeline:
    """A copy of a pipeline whose next run is `second`."""
    origin = {"train__run": "second", "train__init_from": str(source)}
    return make_training(finished.data.home, home, **origin, **changes)


def test_the_first_loss_is_the_last_of_the_other_run_and_after_the_first_checkpoint_that_may_go(
    finished: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, home = tmp_path / NEWEST, tmp_path / "home"
    shutil.copytree(finished.run.checkpoints / NEWEST, source)
    run = begun(finished, home, source, train__steps=10)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    second = run.data.pipeline.layout.run("second")
    rows = TrainPipeline(run.data, name="second").rows()
    held_out = [row for row in finished.rows() if "val_loss" in row]
    assert rows[0]["val_loss"] == pytest.approx(held_out[-1]["val_loss"], abs=1e-6)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 11))
    record = read_record(second.record)["origin"]
    assert (record["path"], record["step"]) == (str(source), 60)
    assert read_record(second.launch)["origin"] == record

    words = ["replay", str(run.data.file), "second"]
    with run.trainer():
        assert exit_code([*words, str(tmp_path / "again")]) == 0, capsys.readouterr()
    source.rename(tmp_path / "gone")
    assert exit_code([*words, str(tmp_path / "without")]) == 74
    assert f"{source}, whose parameters this run began with" in capsys.readouterr().err
    assert begun(finished, home, source, train__steps=20).once().returncode == 0
    assert (second.checkpoints / "step-000000020").is_dir()


def test_a_damaged_source_is_refused_before_the_run_begins(
    finished: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / NEWEST
    shutil.copytree(finished.run.checkpoints / NEWEST, source)
    weights = source / "model-00001.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    run = begun(finished, tmp_path / "home", source)
    damaged = run.once()
    assert damaged.returncode == 65 and f"sha256 of {weights.name} differs" in damaged.stderr
    assert not run.data.pipeline.layout.run("second").record.exists()

    (source / "checkpoint.json").unlink()
    assert exit_code(["config", "check", str(run.data.file)]) == 78
    assert f"{source} is no checkpoint" in capsys.readouterr().err


def test_a_model_in_the_layout_of_transformers_begins_a_run_once_nothing_differs(
    finished: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline, pin = finished.data.pipeline, finished.data.pin()
    shape = Shape.parse(pipeline.train.model.body(), vocab_size=pin.tokenizer.vocab_size, seq_len=64)
    tokenizer = (pipeline.layout.datasets / pin.tokenizer.file).read_bytes()
    other = write_model(tmp_path / "other", shape, tokenizer, rms_norm_eps=0.5, hidden_act="gelu")
    run = begun(finished, tmp_path / "home", other, train__steps=10)
    second = run.data.pipeline.layout.run("second")
    refused = run.once()
    assert exit_code(["config", "check", str(run.data.file)]) == refused.returncode == 78
    for said in (refused.stderr, capsys.readouterr().err):
        assert "rms_norm_eps is 0.5" in said and "hidden_act is" in said
    assert not second.record.exists()

    model = write_model(tmp_path / "model", shape, tokenizer)
    list_sums(model)
    run = begun(finished, tmp_path / "home", model, train__steps=10)
    assert exit_code(["config", "check", str(run.data.file)]) == 0
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    origin = {"path": str(model), "step": None, "sha256": hash_file(model / "SHA256SUMS").sha256}
    assert read_record(second.record)["origin"] == read_record(second.launch)["origin"] == origin
    assert (second.checkpoints / "step-000000010").is_dir()
    (model / "config.json").write_bytes(b"{}")
    assert exit_code(["replay", str(run.data.file), "second", str(tmp_path / "again")]) == 78
    assert "is not whole: config.json has the sha256" in capsys.readouterr().err
