"""What the supervisor makes of an evaluation whose checkpoint is gone, or whose end holds the run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from stoker.checkpoints.format import checkpoint_name
from stoker.config.schema_evaluation import SuiteSchedule
from stoker.supervise.mirror.inventory import Checkpoint, Checkpoints
from stokerd.supervision.jobs import evaluation
from stokerd.supervision.jobs.evaluation_books import EvaluationBooks
from support.pipelines import make_pipeline

FOUND = {"checkpoint_digest": "d", "suite": "heldout", "invalid": None, "seconds": 1.0}


@pytest.mark.parametrize(("there", "path"), [(None, "/"), ("other", "/"), ("d", "/no")])
def test_nothing_is_recorded_of_a_checkpoint_that_is_gone(there: str | None, path: str) -> None:
    of = Checkpoint(Path(path), 7, {}, "d")
    told: list[tuple[str, str]] = []
    run: Any = SimpleNamespace(
        checkpoints=SimpleNamespace(get=lambda _: there and replace(of, digest=there)),
        events=SimpleNamespace(record=lambda word, level, **_: told.append((word, level))),
    )
    evaluation._note(run, of, FOUND)
    assert told == [("evaluation_failed", "info")]


@pytest.mark.parametrize(
    ("how", "held", "expected"),
    [
        ("event", "", []),
        ("pause", "", ["pause", "run_paused"]),
        ("halt", "", ["halt"]),
        ("halt", "paused by you", []),
    ],
)
def test_what_got_worse_holds_the_run_as_the_policy_says(
    how: str, held: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(evaluation.policies, "halt", lambda *_: done.append("halt"))
    run: Any = SimpleNamespace(
        pipeline=SimpleNamespace(promote=SimpleNamespace(on_regression=how)),
        store=SimpleNamespace(
            begun=SimpleNamespace(is_over=False, held=held), pause=lambda _: done.append("pause")
        ),
        events=SimpleNamespace(record=lambda word, **_: done.append(word)),
        at=SimpleNamespace(step=7),
    )
    evaluation._hold(run, "worse")
    assert done == expected


def test_retention_spares_what_an_evaluation_needs(tmp_path: Path) -> None:
    checkpoints = Checkpoints(make_pipeline(tmp_path, train__checkpoint={"keep_last": 1}).pipeline)
    for step in (1, 2, 3):
        checkpoints.path(checkpoint_name(step)).mkdir(parents=True)
        checkpoints.proven(checkpoint_name(step), {"step": step}, "d")
    checkpoints.evaluated = {checkpoint_name(2)}
    assert checkpoints.prune() == [1]
    checkpoints.evaluated = set()
    assert checkpoints.prune() == [2]


def test_an_evaluation_is_overdue_only_while_one_is_due_or_the_last_failed() -> None:
    one = Checkpoint(Path("/step"), 100, {}, "d")
    here, lines, done = {"step": one}, list[Any](), dict[str, set[int]]()
    train = SimpleNamespace(milestones=())
    entries = (SuiteSchedule(suite=Path("/a.yaml"), every_steps=100),)
    run: Any = SimpleNamespace(
        pipeline=SimpleNamespace(evaluations=entries, train=train),
        store=SimpleNamespace(record={}),
        context=SimpleNamespace(stopping=False),
        checkpoints=SimpleNamespace(proven_names=here, get=here.get),
        **{"at": one, "state": SimpleNamespace(phase=""), "jobs": {}},
        slices={"evaluation_books": SimpleNamespace(lines=lines, done=lambda: done, shown=dict)},
    )

    def overdue() -> bool:
        list(evaluation._due(run, "cpu"))
        return evaluation.PROGRESS.of(run).due_at is not None

    assert overdue()
    here.clear()  # by a rollback
    assert not overdue()
    lines.append(SimpleNamespace(invalid="no room"))
    assert overdue()


def test_timeout_alone_bounds_a_worker_that_says_nothing() -> None:
    assert evaluation.EVALUATION.silent_s == evaluation.EVALUATION_BETWEEN.silent_s == math.inf


def test_the_promoted_checkpoint_is_not_evaluated_once_more_as_its_own_baseline() -> None:
    books = EvaluationBooks.__new__(EvaluationBooks)
    books._run, books.lines = Mock(), []
    books._run.promoted.return_value = {"digest": "a", "checkpoint": "step-000000010"}
    other = books.baseline("heldout", "b")
    assert other is not None and other["digest"] == "a"
    assert books.baseline("heldout", "a") is None
