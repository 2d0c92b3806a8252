"""A run's history that somebody spoiled: refused with what to do, or healed; and nothing is lost by it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.plan.log import read_plan
from support.audits import audit_of
from support.training import TrainPipeline, make_training

STEPS = 80
# A set has some 36 batches: the plan names each on its own line, and gets into the second epoch.
SETTINGS: dict[str, Any] = {
    "plan": {"segment_tokens": 1000},
    "train__global_batch": 16,
    "train__checkpoint": {"every": None, "every_steps": 20, "keep_last": 2},
    "train__evaluate": {"every_steps": None, "tokens": 0},
    "train__model": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 32},
}


@pytest.fixture(scope="module")
def planned(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """A finished run whose plan has three entries. Tests copy it, or put back what they changed."""
    run = make_training(shard_sets, tmp_path_factory.mktemp("planned"), **SETTINGS, train__steps=STEPS)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert len(lines(run)) == 3
    return run


def lines(run: TrainPipeline) -> list[bytes]:
    return run.run.plan.read_bytes().splitlines()


def edited(run: TrainPipeline) -> bytes:
    first, *rest = lines(run)
    return b"\n".join([first.replace(b'"tail_tokens":', b'"tail_tokens":1'), *rest, b""])


def test_a_spoiled_plan_is_refused_and_named_and_left_as_it_is(planned: TrainPipeline) -> None:
    good, launches = planned.run.plan.read_bytes(), len(planned.events("trainer_launched"))
    bad = edited(planned)
    planned.run.plan.write_bytes(bad)
    try:
        ended = planned.once()
        assert ended.returncode == 65, ended.stderr
        for words in ("line 2", "put back the copy in the newest checkpoint", "plan.jsonl"):
            assert words in ended.stderr
        assert planned.run.plan.read_bytes() == bad
        assert len(planned.events("trainer_launched")) == launches
    finally:
        planned.run.plan.write_bytes(good)


def test_a_checkpoint_whose_plan_is_gone_gives_it_back_and_the_run_goes_on(
    planned: TrainPipeline, tmp_path: Path
) -> None:
    shutil.copytree(planned.data.home, tmp_path / "copy")
    run = make_training(tmp_path, tmp_path / "copy", **SETTINGS, train__steps=STEPS + 20)
    before = read_plan(run.run.plan)
    run.run.plan.unlink()
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert run.events("run_file_restored")[-1]["source"] == f"step-{STEPS:09d}"
    after = read_plan(run.run.plan)
    assert after.hashes[: len(before.hashes)] == before.hashes
    assert [row["step"] for row in run.rows()] == list(range(1, STEPS + 21))
    assert audit_of(run.data.file)["findings"] == []
