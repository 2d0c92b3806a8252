"""What the supervisor keeps of the checkpoints that a trainer of the user's own told of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.store.record import read_record
from stoker.supervise.actions import WatchSaves
from stoker.supervise.health.trainer_protocol import Told
from stokerd.supervision.jobs.external import ExternalCheckpoints
from support.foreign import make_foreign


def test_a_word_is_kept_until_its_own_answer_comes_though_the_path_is_told_again(tmp_path: Path) -> None:
    pipeline = make_foreign(tmp_path, "").data.pipeline
    layout = pipeline.layout.run("main")
    layout.create()
    run = SimpleNamespace(pipeline=pipeline, layout=layout, state=SimpleNamespace(live=None))
    run.events, run.context = (
        SimpleNamespace(record=None),
        SimpleNamespace(layout=pipeline.layout, waiter=None),
    )
    external = ExternalCheckpoints(cast(Any, run))

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
