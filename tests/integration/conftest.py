"""What several integration tests start from, made once for all of them. Tests copy it, or only look."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.once import made_once
from support.parquet import write_fineweb
from support.pipelines import Template, make_pipeline, opened
from support.training import TrainPipeline, make_shard_sets, make_training


@pytest.fixture(scope="session")
def shard_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state and hot directories of two files whose shard sets are proven."""
    return made_once(tmp_path_factory, "shard-sets", make_shard_sets)


@pytest.fixture(scope="session")
def finished(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """A run of 60 steps that was left in peace."""
    home = made_once(tmp_path_factory, "finished", lambda home: train(shard_sets, home))
    return TrainPipeline(opened(home))


@pytest.fixture(scope="session")
def finished_with_torch(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """The same run, trained by the built-in trainer."""
    home = made_once(tmp_path_factory, "with-torch", lambda home: train(shard_sets, home, with_torch=True))
    return TrainPipeline(opened(home), with_torch=True)


def train(shard_sets: Path, home: Path, **how: bool) -> None:
    run = make_training(shard_sets, home, **how)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    model = run.run.checkpoints / run.checkpoints()[-1] / "model-00001.safetensors"
    assert (b"unigram" in model.read_bytes()) is not run.with_torch, "by the trainer that was asked for"


@pytest.fixture(scope="session")
def drained(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Three good files whose sets are proven."""

    def build(home: Path) -> None:
        data = make_pipeline(home)
        for number in range(3):
            write_fineweb(data.source / f"{number:03d}.parquet", 150, seed=number)
        data.drain()

    return Template(made_once(tmp_path_factory, "drained", build))
