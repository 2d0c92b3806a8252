"""What the supervisor keeps of the checkpoints that a trainer of the user's own told of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.checkpoints.external.heard import Bounds
from stoker.store.record import read_record
from stoker.supervise.actions import WatchSaves
from stoker.supervise.health.trainer_protocol import Told
from stokerd.supervision.jobs.external import ExternalCheckpoints
from support.foreign import make_foreign


def external_of(tmp_path: Path) -> tuple[Any, ExternalCheckpoints]:
    pipeline = make_foreign(tmp_path, "").data.pipeline
    layout = pipeline.layout.run("main")
    layout.create()
    run = SimpleNamespace(pipeline=pipeline, layout=layout, state=SimpleNamespace(live=None))
    run.events, run.context = (
        SimpleNamespace(record=None),
        SimpleNamespace(layout=pipeline.layout, waiter=None),
    )
    return run, ExternalCheckpoints(cast(Any, run))


def test_of_a_second_of_the_training_log_the_last_step_bounds_what_was_made_in_it(tmp_path: Path) -> None:
    run, _ = external_of(tmp_path)
    rows = [(100, 9), (101, 10), (140, 10), (141, 11), (180, 11)]
    lines = (f'{{"step":{step},"loss":1.0,"time":"2026-11-23T00:00:{at:02}Z"}}\n' for step, at in rows)
    run.layout.metrics.parent.mkdir(exist_ok=True)
    run.layout.metrics.write_text("".join(lines))
    heard = ExternalCheckpoints(cast(Any, run))._heard
    begun = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    bounds = [heard.bounds(begun + at) for at in (9.5, 10.5, 11.5, 12.5)]
    assert bounds == [None, Bounds(100, 140), Bounds(140, 180), Bounds(180, None)]


def test_a_word_is_kept_until_its_own_answer_comes_though_the_path_is_told_again(tmp_path: Path) -> None:
    run, external = external_of(tmp_path)
    layout = run.layout

    def kept() -> tuple[Any, Any]:
        body = read_record(layout.told)
        return body["told"], body["at"]

    external.look([Told("ckpt.pt", 15, 1.0)])
    external.look([Told("ckpt.pt", 20, 2.0), Told("best.pt", 18, 1.5)])
    external._hear({"kind": "taken", "told": ["ckpt.pt", 15, 1.0]}, WatchSaves())
    assert kept() == ([["ckpt.pt", 20], ["best.pt", 18]], [2.0, 1.5])
    again = ExternalCheckpoints(cast(Any, run))
    again._hear({"kind": "taken", "told": ["ckpt.pt", 20, 2.0]}, WatchSaves())
    assert kept() == ([["best.pt", 18]], [1.5])
