"""Fixtures that several integration tests share; each is made once, by the first test that wants it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.training import TrainPipeline, make_shard_sets, make_training


@pytest.fixture(scope="session")
def shard_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state and hot directories of two files whose shard sets are proven."""
    home = tmp_path_factory.mktemp("shard-sets")
    make_shard_sets(home)
    return home


@pytest.fixture(scope="session")
def finished(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """A run of 60 steps that was left in peace. Tests copy it, or look only."""
    run = make_training(shard_sets, tmp_path_factory.mktemp("finished"))
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    return run
