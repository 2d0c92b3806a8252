"""`stoker run` as process 1 of a container: its signals, its strays, its end; no name, no right, no disk."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from support.container import USER, Container, contained, missing
from support.skipping import unless_missing
from support.training import TrainPipeline, make_training
from support.waiting import LONG_S, wait_until

STOKER = str(Path(sys.executable).parent / "stoker")
pytestmark = [pytest.mark.root, unless_missing("Stoker as process 1", missing())]


def last_step(container: Container, run: TrainPipeline) -> int:
    """The last step in the log of the run inside."""
    log = container.path(run.run.metrics)
    lines = log.read_text().splitlines() if log.exists() else []
    return max((row["step"] for row in map(json.loads, lines) if "loss" in row), default=0)


def test_as_process_1_it_reaps_strays_and_ends_once_the_trainer_has_saved(
    shard_sets: Path, tmp_path: Path
) -> None:
    for name in ("home", "lab"):
        (tmp_path / name).mkdir()
    source, printed = shard_sets / "source", tmp_path / "printed"
    run = make_training(
        shard_sets, tmp_path / "home", dataset__source__path=str(source), train__steps=100_000
    )
    file = str(run.data.file)
    with (
        run.trainer(),
        contained(
            tmp_path / "home", tmp_path / "lab", [STOKER, "run", file], sees=[source], printed=printed
        ) as container,
    ):
        wait_until(lambda: container.ended() or last_step(container, run) > 3, 90, "training")
        assert not container.ended(), printed.read_text()
        assert {Path(f"/proc/{one.pid}").stat().st_uid for one in container.everyone()} == {USER}
        container.inside(STOKER, "status", file, "--check")

        stray = container.inside("sh", "-c", "sleep 0.1 >/dev/null & echo $!").strip()
        wait_until(lambda: not container.path(Path("/proc", stray)).exists(), what="the stray to be reaped")

        container.signal(signal.SIGTERM)
        assert container.outer.wait(LONG_S) == 0
    said = printed.read_text()
    assert (step := re.search(r"^step +(\d+) of 100,000", said, re.MULTILINE))
    assert f"checkpoint  step {step[1]}: " in said
