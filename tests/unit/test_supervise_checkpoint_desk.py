"""Choosing a checkpoint: bad ones are passed over, one that cannot be read is waited for, never replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from stoker.kit.context import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.supervise.report.metrics import Meters
from stokerd.supervision.checkpoints import CheckpointDesk
from stokerd.supervision.cycle import Turns
from stokerd.supervision.run_store import RunBook
from support.pipelines import make_pipeline

FROM_THE_START = [(0, None)]


class Said:
    """Stands for the context: only its pipeline and its events are asked for."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline, self.events = pipeline, self
        self.words: list[tuple[str, str | None]] = []

    def record(self, event: str, level: str = "info", **fields: Any) -> None:
        self.words.append((event, fields.get("path")))


class Script:
    """Stands for the turns: each proof ends as the script says, and pauses are counted."""

    def __init__(self, *verdicts: str) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[str] = []
        self.pauses = 0
        self.doing = ""

    def errand(self, activity: str, subject: str, module: str, task: Any, *, quiet_s: float) -> WorkerExit:
        self.asked.append(subject)
        verdict = self.verdicts.pop(0)
        if verdict == "killed":
            return WorkerExit("killed", None, 9, None, None, 0)
        body = {"step": int(subject.removeprefix("step-")), "position": [0, 0], "tokens": 0}
        proof = {
            "verdict": verdict,
            "reason": "…",
            "body": body if verdict == "proven" else None,
            "digest": "",
        }
        return WorkerExit("finished", 0, None, {"proofs": [proof]}, None, 0)

    def pause(self, seconds: float, doing: str) -> None:
        self.pauses += 1


class NoMeters:
    def __init__(self) -> None:
        self.quarantined = self
        self.count = 0

    def inc(self) -> None:
        self.count += 1


class Case:
    def __init__(self, home: Path, *verdicts: str) -> None:
        pipeline = make_pipeline(home).pipeline
        pipeline.layout.create()
        run = pipeline.layout.run("main")
        run.create()
        for step in (10, 20, 30):
            (run.checkpoints / f"step-{step:09d}").mkdir()
        self.said, self.script, self.meters = Said(pipeline), Script(*verdicts), NoMeters()
        self.desk = CheckpointDesk(
            cast(DaemonContext, self.said),
            cast(Turns, self.script),
            cast(Meters, self.meters),
            cast(RunBook, None),
        )

    def chosen(self) -> int | None:
        checkpoint = self.desk.newest_proven(FROM_THE_START)
        return checkpoint.step if checkpoint else None


def test_the_newest_is_used_when_it_is_proven(tmp_path: Path) -> None:
    case = Case(tmp_path, "proven")
    assert case.chosen() == 30
    assert case.script.asked == ["step-000000030"]


def test_invalid_ones_are_moved_away_until_one_is_proven(tmp_path: Path) -> None:
    case = Case(tmp_path, "invalid", "invalid", "proven")
    assert case.chosen() == 10
    assert case.meters.count == 2
    assert ("checkpoint_quarantined", "checkpoints/step-000000030") in case.said.words


def test_with_every_one_invalid_there_is_none(tmp_path: Path) -> None:
    assert Case(tmp_path, "invalid", "invalid", "invalid").chosen() is None


@pytest.mark.parametrize("trouble", ["unreadable", "killed"])
def test_one_that_cannot_be_read_is_waited_for_and_an_older_one_is_never_used(
    tmp_path: Path, trouble: str
) -> None:
    case = Case(tmp_path, trouble, trouble, "proven")
    assert case.chosen() == 30
    assert case.script.asked == ["step-000000030"] * 3
    assert case.script.pauses == 2
    assert case.meters.count == 0


def test_before_every_launch_the_newest_is_proven_again(tmp_path: Path) -> None:
    case = Case(tmp_path, "proven", "invalid", "proven")
    assert case.chosen() == 30
    assert case.chosen() == 20
