"""`stoker config check`, `stoker run` and the daemons agree on what is wrong with a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.cli.main import exit_code
from stoker.corpus.records.dataset import DatasetPin
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import write_record
from stoker.supervise.run.record import Identity, RunRecord
from support.pipelines import DataPipeline, Template, make_pipeline
from support.text import documents, write_parquet
from support.waiting import LONG_S

Edit = Callable[[dict[str, Any]], None]


def begun(pipeline: DataPipeline, pin: DatasetPin) -> None:
    """A run that began with this pin, and its newest checkpoint."""
    layout = pipeline.pipeline.layout.run("main")
    layout.create()
    identity = Identity(
        "main", "ab" * 8, "2026-01-01T00:00:00Z", 1, "prose", pin.version, pin.build_id,
        pin.tokenizer.sha256, pin.tokenizer.vocab_size, "uint16", 32,
    )  # fmt: skip
    write_record(layout.record, RunRecord(identity).body())
    newest = layout.checkpoints / "step-000000010"
    newest.mkdir()
    (newest / "model.json").write_text(json.dumps(pipeline.pipeline.train.model.body()))
    (newest / "trainer.json").write_text(json.dumps({"numerics": {"optimizer": "fused_adamw"}}))


@pytest.fixture(scope="module")
def pipeline(drained: Template, tmp_path_factory: pytest.TempPathFactory) -> DataPipeline:
    """Shard sets, and a run that has begun."""
    pipeline = drained.copy(tmp_path_factory.mktemp("agree"), train__start_when={"tokens": 1000})
    begun(pipeline, pipeline.pin())
    return pipeline


def edited(pipeline: DataPipeline, edit: Edit) -> None:
    body = yaml.safe_load(pipeline.file.read_text())
    edit(body)
    pipeline.file.write_text(yaml.safe_dump(body, sort_keys=False))


def test_what_is_right_is_right_for_the_check(
    pipeline: DataPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["config", "check", str(pipeline.file)]) == 0, capsys.readouterr().err


def other_data(body: dict[str, Any]) -> None:
    body["tokenizer"]["train"].update(vocab_size=500)
    body["dataset"].update(text_column="id")
    body["stage"].update(free_floor="900TiB")


def other_run(body: dict[str, Any]) -> None:
    body["dataset"].update(version=2)


def other_model(body: dict[str, Any]) -> None:
    body["train"]["model"].update(layers=2, qk_norm=True)
    body["train"].update(optimizer={"name": "muon"})


WRONG: dict[Edit, tuple[str | None, list[str]]] = {
    other_data: (STAGE_SHARD, ["is pinned to {", "pinned to build", "to stay free on a hot disk"]),
    other_run: (TRAIN_SUPERVISOR, ["dataset_version is 1 in"]),
    other_model: (
        None,
        [
            "layers is 1 in its newest checkpoint",
            "qk_norm is false in its newest",
            "checkpoint was made with adamw, not muon",
        ],
    ),
}


AS_A_NEW_VERSION = "dataset.version to 2 and train.run (now main) to a new name"


@pytest.mark.parametrize("edit", WRONG, ids=lambda edit: edit.__name__)
def test_what_is_wrong_is_wrong_for_the_check_the_run_and_the_daemon_it_concerns(
    pipeline: DataPipeline, edit: Edit, capsys: pytest.CaptureFixture[str]
) -> None:
    right = pipeline.file.read_text()
    edited(pipeline, edit)
    (daemon, told), pin = WRONG[edit], pipeline.pin()
    try:
        for command in (["config", "check"], ["run", "--until-done"]):
            assert exit_code([*command, str(pipeline.file)]) == 78
            said = capsys.readouterr().err
            assert [words for words in told if words not in said] == []
        if daemon is not None:
            refused = pipeline.once(daemon, LONG_S)
            assert refused.returncode == 78, refused.stderr
            assert any(words in refused.stderr for words in told)
            assert edit is not other_data or AS_A_NEW_VERSION in refused.stderr
            assert pipeline.pin() == pin
    finally:
        pipeline.file.write_text(right)


def test_a_source_without_the_text_column_is_refused_before_anything_is_quarantined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = make_pipeline(tmp_path, dataset__text_column="body")
    write_parquet(pipeline.source / "0.parquet", documents(10))
    assert exit_code(["run", "--until-done", str(pipeline.file)]) == 78
    assert "dataset.text_column: none of 1 files has it" in capsys.readouterr().err
    assert not pipeline.pipeline.layout.quarantine.exists()
