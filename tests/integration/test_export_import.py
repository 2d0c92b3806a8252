"""Sets on their way out and in, with the real commands and the real `datasets`; sets of earlier imports."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stoker.corpus.records.sources import write_source
from stoker.shards.format.reader import ShardSet
from support.audits import audit_of
from support.commands import stoker
from support.imports import import_set, streams
from support.pipelines import DataPipeline, Template, make_pipeline
from support.training import TrainPipeline


@pytest.fixture(name="made")
def made_fixture(drained: Template) -> DataPipeline:
    """A pipeline whose three files are shard sets; only looked at."""
    return drained.made


def tokenizer_of(data: DataPipeline) -> Path:
    return data.pipeline.layout.tokenizer("prose", 1)


def do(*arguments: object) -> str:
    """A command that has to go well; what it printed."""
    ended = stoker(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def keys_of(data: DataPipeline) -> list[str]:
    """Keys of the listing's sets, in order."""
    return [str(data.sources()[path].key) for path in data.pin().listing]


def stream_of(data: DataPipeline, split: str, *keys: str) -> list[int]:
    """The tokens of these sets."""
    shards = data.pipeline.hot_layout.shards("prose")
    return [
        token
        for key in keys
        for part, _ in ShardSet(shards / key[:16]).shards(split)
        for token in part.tolist()
    ]


@pytest.mark.parametrize("form", ["nanogpt", "hf-arrow"])
def test_what_is_exported_comes_back_from_an_import(form: str, made: DataPipeline, tmp_path: Path) -> None:
    """Given rows of train.seq_len in Arrow, whose tail is left out: else all that the sets hold."""
    do("data", "export", "--format", form, made.file, tmp_path / "out")
    tokenizer = tokenizer_of(made)
    for split in ("train", "val"):
        do("data", "import", tmp_path / "out", tmp_path / split, "--tokenizer", tokenizer, "--split", split)
        found = [
            row
            for file in sorted((tmp_path / split).iterdir())
            for row in pq.read_table(file)["tokens"].to_pylist()
        ]
        keys = keys_of(made)
        stream = stream_of(made, split, *keys)
        whole = stream[: len(stream) - len(stream) % 32] if form == "hf-arrow" else stream
        eot = made.pin().tokenizer.eot
        assert [token for row in found for token in row][: len(whole)] == whole
        assert {row.index(eot) - len(row) for row in found} == {-1}


def test_what_was_imported_is_the_source_of_a_pipeline(made: DataPipeline, tmp_path: Path) -> None:
    do("data", "export", "--format", "nanogpt", made.file, tmp_path / "out")
    data = make_pipeline(
        tmp_path / "again",
        dataset__tokens_column="tokens",
        dataset__filters={},
        tokenizer={"file": str(tokenizer_of(made))},
    )
    data.source.rmdir()
    do("data", "import", tmp_path / "out", data.source, "--tokenizer", tokenizer_of(made))
    data.drain()
    given = stream_of(made, "train", *keys_of(made))
    found = [token for split in ("train", "val") for token in stream_of(data, split, *keys_of(data))]
    assert Counter(found) == Counter(given)
    assert do("audit", data.file, "--deep")


def test_a_state_with_an_imported_set_is_taken_up_trained_on_copied_to_warm_and_its_loss_is_said(
    drained: Template, tmp_path: Path
) -> None:
    enough = {"train__steps": 30, "train__global_batch": 32}
    data = drained.copy(tmp_path / "home", warm=str(tmp_path / "warm"), **enough)
    listing = (*data.pin().listing, "import/web")
    layout = data.pipeline.layout
    source = import_set(layout, data.pipeline.hot_layout, data.pin(), streams(), where="after")
    assert data.pin().listing == listing
    ended = data.once("stage_shard")
    assert ended.returncode == 0, ended.stderr
    assert "3 files built and 1 imported" in ended.stderr + ended.stdout
    assert data.pin().complete
    taken = data.sources()["import/web"]
    assert taken == replace(source, state="synced", on_warm=True)
    training = TrainPipeline(data)
    assert training.once().returncode == 0
    assert training.record()["finished"] == "steps"
    assert str(source.key) in training.run.plan.read_text()
    for deep in (False, True):
        report = audit_of(data.file, deep=deep)
        assert report["findings"] == []
        assert report["imported"]["sets"] == 1
        assert report["rows"] == report["documents"] + sum(report["dropped"].values()) == 450
    asked = stoker("data", "where", data.file, "import/web:0")
    assert (asked.returncode, "was imported" in asked.stderr) == (64, True)

    shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", str(source.key)))
    write_source(layout, replace(taken, evicted=True))  # it is on warm only, which is no loss
    do("data", "export", "--format", "nanogpt", data.file, tmp_path / "out")
    assert audit_of(data.file)["findings"] == []

    data = drained.again(data.home)  # without warm, where it was
    assert data.once("stage_shard").returncode == 0
    lost = data.sources()["import/web"]
    assert (lost.state, lost.reason) == ("quarantined", "content_gone")
    assert data.events("stage_shard", "content_gone")
    assert data.pin().listing == listing  # a plan may name it
    (finding,) = audit_of(data.file)["findings"]
    assert finding.startswith(f"{training.run.plan}: entry 1: names set {source.key16}")


def test_an_imported_set_without_ends_of_text_is_known_by_its_tokens(
    drained: Template, tmp_path: Path
) -> None:
    data = drained.copy(tmp_path)
    import_set(data.pipeline.layout, data.pipeline.hot_layout, data.pin(), streams(where=None), where=None)
    assert "documents not known of 1" in stoker("audit", data.file).stdout
