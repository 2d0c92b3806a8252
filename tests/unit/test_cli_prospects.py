"""What `stoker config check` expects of a pipeline: the start gate, the epochs, the time it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline import prospects
from stoker.cli.pipeline.prospects import disappointments, of_text, parameters, training_days
from stoker.config.schema import Pipeline
from stoker.supervise.run.gates import DataInView
from support.config_files import MINIMAL, load_text, write_pipeline
from support.parquet import write_fineweb

MORE = """\
  seq_len: 100
  global_batch: 10
  start_when: {tokens: 5000, shard_sets: 2}
  evaluate: {tokens: 1000}
shard: {val_ratio: 0.1}
plan: {epochs: 2}
tokenizer: {train: {vocab_size: 32000, train_bytes: 1MB}}
"""


def whole(sets: int, train: int, val: int, *, complete: bool = False) -> DataInView:
    return DataInView(sets, train, val, complete)


def said(pipeline: Pipeline, data: DataInView | None, days: float = 1.0) -> list[str]:
    return [".".join(map(str, fault.path)) for fault in disappointments(pipeline, data, days)]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (whole(2, 5000, 1000), []),
        (None, []),
        (whole(1, 5000, 1000), ["train.start_when"]),
        (whole(2, 5000, 999), ["train.start_when"]),
        (whole(2, 4999, 1000), ["train.start_when", "plan.epochs"]),
        (whole(1, 4999, 0, complete=True), ["plan.epochs"]),
        (whole(1, 100, 0, complete=True), ["train.start_when", "plan.epochs"]),
    ],
)
def test_data_that_never_opens_the_gate_or_does_not_last_is_told(
    tmp_path: Path, data: DataInView | None, told: list[str]
) -> None:
    assert said(load_text(tmp_path, MINIMAL + MORE), data) == told


@pytest.mark.parametrize(
    ("phases", "tokens", "ends"),
    [("", "10,000", 8), ("  phases: [{name: wide, from: 5, global_batch: 50}]\n", "30,000", 5)],
)
def test_the_step_at_which_the_data_ends_is_named(
    tmp_path: Path, phases: str, tokens: str, ends: int
) -> None:
    text = MINIMAL + phases + MORE.replace("5000", "0")
    (fault,) = disappointments(load_text(tmp_path, text), whole(2, 4_000, 1000, complete=True), 1.0)
    assert f"10 steps take {tokens} tokens" in fault.text
    assert f"with 2 epochs the run ends at about step {ends};" in fault.text


def test_a_limit_bounds_what_the_sources_text_will_become(tmp_path: Path) -> None:
    plain = load_text(tmp_path, MINIMAL + MORE)
    assert of_text(plain, files=4, text_bytes=4e6) == DataInView(4, 900_000, 100_000, complete=False)
    fewer = MINIMAL.replace("name: prose", "name: prose\n  limit: {files: 1, tokens: 100000}")
    assert of_text(load_text(tmp_path, fewer + MORE), 4, 4e6) == DataInView(1, 90_000, 10_000, complete=False)


def test_globs_of_what_is_no_parquet_and_months_of_training_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MINIMAL.replace("path: parquet", "path: parquet, include: ['*.jsonl', 'a.d/*', '*.parquet', '*']")
    pipeline = load_text(tmp_path, text)
    globs, months = disappointments(pipeline, None, 60.0)
    assert "'*.jsonl'" in globs.text and "only parquet" in globs.text
    monkeypatch.setattr(prospects, "_has_gpu", lambda: False)
    assert months.path == ("train", "model") and "about 60 days" in months.text


def test_the_time_is_six_operations_a_parameter_and_token_at_a_stated_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MINIMAL.replace("model: tiny", "model: 474m").replace("steps: 10", "steps: 600000")
    pipeline = load_text(tmp_path, text)
    assert round(parameters(pipeline) / 1e6) == 474
    monkeypatch.setattr(prospects, "_has_gpu", lambda: False)
    monkeypatch.setattr(prospects, "_cores", lambda: 2)
    on_cores = training_days(pipeline)
    monkeypatch.setattr(prospects, "_has_gpu", lambda: True)
    assert on_cores / training_days(pipeline) == pytest.approx(100e12 / 60e9)
    assert 50 < training_days(pipeline) < 54


def test_a_model_of_the_examples_on_a_small_machine_is_warned_of_and_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prospects, "_has_gpu", lambda: False)
    write_fineweb(tmp_path / "parquet" / "a.parquet", rows=10)
    text = MINIMAL.replace("model: tiny", "model: 474m").replace("steps: 10", "steps: 600000")
    path = write_pipeline(tmp_path, text + "  start_when: {tokens: 1000}\nstage: {free_floor: 0}\n")
    assert exit_code(["config", "check", str(path)]) == 0
    said = capsys.readouterr().out
    assert "warning: train.model: 474." in said and "days here, at 30 GFLOP/s for each of" in said
    assert "warning: train.start_when: asks for 1 shard sets" in said
