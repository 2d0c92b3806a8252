"""What the supervisor keeps of the checkpoints that an external trainer told of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.checkpoints.external.heard import Bounds
from stoker.store.record import read_record
from stoker.supervise.actions import Job
from stoker.supervise.health.trainer_protocol import Told
from stoker.supervise.state import Phase, RunState
from stokerd.supervision.jobs.external import SAVES, WATCH
from stokerd.supervision.run import Run
from support.external_trainer import make_external


def external_of(tmp_path: Path) -> Run:
    pipeline = make_external(tmp_path, "").data.pipeline
    pipeline.layout.run("main").create()
    context = SimpleNamespace(pipeline=pipeline, events=SimpleNamespace(record=None))
    return Run(cast(Any, context), RunState(Phase.TRAINING, 0.0), *cast(Any, [None] * 7))


def test_of_a_second_of_the_training_log_the_last_step_bounds_what_was_made_in_it(tmp_path: Path) -> None:
    run = external_of(tmp_path)
    rows = [(100, 9), (101, 10), (140, 10), (141, 11), (180, 11)]
    row = '{{"step":{},"timeline":0,"loss":1.0,"time":"2026-11-23T00:00:{:02}Z"}}\n'
    lines = (row.format(step, at) for step, at in rows)
    run.layout.metrics.parent.mkdir(exist_ok=True)
    run.layout.metrics.write_text("".join(lines))
    begun = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    bounds = [SAVES.of(run).heard.bounds(begun + at) for at in (9.5, 10.5, 11.5, 12.5)]
    assert bounds == [None, Bounds(100, 140), Bounds(140, 180), Bounds(180, None)]


def test_a_word_is_kept_until_its_own_answer_comes_though_the_path_is_told_again(tmp_path: Path) -> None:
    run = external_of(tmp_path)

    def kept() -> tuple[Any, Any]:
        body = read_record(run.layout.told)
        return body["told"], body["at"]

    def tell(*told: Told) -> None:
        run.told += told
        list(WATCH.due(run))

    tell(Told("ckpt.pt", 15, 1.0))
    tell(Told("ckpt.pt", 20, 2.0), Told("best.pt", 18, 1.5))
    WATCH.on_message(run, Job("watch"), {"kind": "taken", "told": ["ckpt.pt", 15, 1.0]})
    assert kept() == ([["ckpt.pt", 20], ["best.pt", 18]], [2.0, 1.5])
    run.slices.clear()  # a restart
    WATCH.on_message(run, Job("watch"), {"kind": "taken", "told": ["ckpt.pt", 20, 2.0]})
    assert kept() == ([["best.pt", 18]], [1.5])
