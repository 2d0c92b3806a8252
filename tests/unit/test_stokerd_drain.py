"""When --once has nothing left to do, whatever the workers that only get ready are at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stokerd import drain
from stokerd.drain import Drain
from stokerd.shard_tasks import PREPARE


@pytest.mark.parametrize(
    ("activity", "abandoned", "over"),
    [(PREPARE, False, True), ("build", False, False), ("build", True, True), ("tokenizer", False, False)],
)
def test_once_waits_for_work_and_not_for_workers_that_get_ready(
    monkeypatch: pytest.MonkeyPatch, activity: str, abandoned: bool, over: bool
) -> None:
    for name in ("decide", "decide_moves"):
        monkeypatch.setattr(drain, name, lambda *_: ())
    job = SimpleNamespace(subject="/some", activity=activity, abandoned=abandoned)
    view: Any = SimpleNamespace(
        hot=SimpleNamespace(known=True, measured=True, tidy=True, lister="/hot"),
        warm=SimpleNamespace(configured=False, lister="/warm"),
        crew=SimpleNamespace(jobs=(job,), busy={"/some": activity}),
        shelf=SimpleNamespace(behind=False),
        failures=SimpleNamespace(holds_back=False),
        tokenizer=SimpleNamespace(task=lambda: None),
        situation=lambda: None,
        shelves=lambda: None,
    )
    context: Any = SimpleNamespace(once=True)
    assert Drain(context, view).is_over() is over
