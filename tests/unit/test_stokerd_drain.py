"""When --once has nothing left to do, whatever the workers that only get ready are at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stokerd import drain
from stokerd.drain import Drain
from stokerd.shard_tasks import PREPARE


@pytest.mark.parametrize(
    ("activity", "abandoned", "open_files", "over"),
    [
        (PREPARE, False, 0, True),
        (PREPARE, False, 1, False),  # it may be what they wait for
        ("build", False, 1, False),
        ("build", True, 1, True),
        ("tokenizer", False, 0, False),
    ],
)
def test_once_waits_for_work_and_not_for_workers_that_get_ready(
    monkeypatch: pytest.MonkeyPatch, activity: str, abandoned: bool, open_files: int, over: bool
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
        preparation=SimpleNamespace(loading={"a module"} if activity == PREPARE else set()),
        book=SimpleNamespace(sources=SimpleNamespace(count=lambda *states: open_files)),
        situation=lambda: None,
        shelves=lambda: None,
    )
    context: Any = SimpleNamespace(once=True)
    assert Drain(context, view).is_over() is over
