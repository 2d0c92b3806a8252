"""The mirror's desk against a worker by script: what it does next, what is trouble, and what hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from stoker.kit.context import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.timelines import Timeline
from stoker.store.errors import Transient
from stoker.store.log import ChainedLog
from stoker.supervise.mirror.inventory import Checkpoints
from stoker.supervise.report.metrics import Meters
from stoker.supervise.run.record import Identity, RunRecord
from stokerd.supervision import mirror as mirror_desk
from stokerd.supervision import mirror_fallback
from stokerd.supervision.cycle import Turns
from stokerd.supervision.mirror import MirrorDesk
from stokerd.supervision.mirror_fallback import MirrorFallback
from stokerd.supervision.mirror_tasks import MirrorTasks
from stokerd.supervision.run_store import RunBook
from support.pipelines import make_pipeline

RUN_ID = "r"
HISTORY = [(0, None)]


def ended(result: dict[str, Any] | None, reason: str = "") -> WorkerExit:
    error = None if result is not None else {"message": reason}
    return WorkerExit("finished" if result is not None else "failed", 0, None, result, error, 0)


def copies(*names: tuple[int, int]) -> dict[str, Any]:
    found = [
        {"timeline": timeline, "step": step, "mark": f"{step:08x}", "run_id": RUN_ID, "val_loss": None}
        for timeline, step in names
    ]
    return {"copies": [{**one, "bytes": 1} for one in found], "foreign": [], "timelines": None}


class Tasks:
    """Stands for the worker: each start ends as the script says; `None` in the script hangs."""

    def __init__(self, script: list[WorkerExit | None]) -> None:
        self.script, self.asked = script, list[tuple[str, dict[str, Any]]]()
        self.verb, self.bytes, self.busy, self.cancelled = "", 0, False, 0
        self.mirror = Path("/warm/checkpoints/main")

    @property
    def quiet_s(self) -> float:
        return 1e6 if self.busy and self.script[0] is None else 0.0

    def alone(self) -> bool:
        return True

    def start(self, verb: str, **words: Any) -> None:
        assert not self.busy
        self.verb, self.busy = verb, True
        self.asked.append((verb, words))

    def hear(self) -> WorkerExit | None:
        if not self.busy or self.script[0] is None:
            return None
        self.busy = False
        return self.script.pop(0)

    def cancel(self) -> None:
        self.script.pop(0)
        self.busy = False
        self.cancelled += 1


class Case:
    """A desk of a run that has begun, with two proven checkpoints, and everything around it that it asks."""

    def __init__(self, home: Path, *script: WorkerExit | None) -> None:
        pipeline = make_pipeline(home, warm=str(home / "warm")).pipeline
        pipeline.layout.create()
        self.layout, self.pipeline, self.events = pipeline.layout, pipeline, self
        run = pipeline.layout.run("main")
        run.create()
        self.words: list[tuple[str, dict[str, Any]]] = []
        self.mirror_failures, self.failures = self, 0
        self.doing, self.pauses, self.crews = "", 0, list[Any]()
        identity = Identity("main", RUN_ID, "", 1, "prose", 1, "b", "t", 400, "uint16", 32)
        book = RunBook(pipeline)
        book.record = RunRecord(identity)
        self.shelf = Checkpoints(pipeline)
        for step in (10, 20):
            path = run.checkpoints / f"step-{step:09d}"
            path.mkdir()
            body = {"step": step, "timeline": 0, "files": {}, "position": [0, 0], "run_id": RUN_ID}
            self.shelf.proven(path, body, f"{step:08x}" + "0" * 56)
        warm = pipeline.warm_layout
        assert warm is not None
        self.desk = MirrorDesk(
            cast(DaemonContext, self), cast(Turns, self), cast(Meters, self),
            shelf=self.shelf, book=book, warm=warm,
        )  # fmt: skip
        self.tasks = Tasks(list(script))
        self.desk.tasks = cast(MirrorTasks, self.tasks)
        self.fallback = MirrorFallback(self.desk)
        self.run = run

    waiter = None

    def record(self, event: str, level: str = "info", **fields: Any) -> None:
        self.words.append((event, fields))

    def inc(self) -> None:
        self.failures += 1

    def due(self, what: str, every_s: float) -> bool:
        return True

    def turn_or_stop(self) -> None:
        pass

    def pause(self, seconds: float, doing: str) -> None:
        self.pauses += 1
        self.doing = doing

    def said(self) -> list[str]:
        return [event for event, _ in self.words]

    def tend(self, turns: int) -> list[str]:
        for _ in range(turns):
            self.desk.tend()
        return [verb for verb, _ in self.tasks.asked]

    def checkpoint(self, step: int) -> Any:
        return self.shelf[f"step-{step:09d}"]


DONE = ended({"name": "", "bytes": 1, "cached": False, "set_aside": None, "heldout": "none"})


def test_it_looks_first_then_copies_the_newest_first(tmp_path: Path) -> None:
    case = Case(tmp_path, ended(copies()), DONE, DONE)
    assert case.tend(4) == ["list", "copy", "copy"]
    sources = [Path(words["source"]).name for verb, words in case.tasks.asked if verb == "copy"]
    assert sources == ["step-000000020", "step-000000010"]
    assert case.desk.settled()
    assert case.desk.status() == {
        "step": 20, "copies": 2, "waiting": 0, "copying": None, "copying_bytes": 0, "trouble": None,
    }  # fmt: skip


def test_a_failed_copy_is_trouble_until_a_copy_succeeds(tmp_path: Path) -> None:
    case = Case(tmp_path, ended(copies()), ended(None, "warm is full"), ended(copies()), DONE, DONE)
    case.tend(3)
    assert (case.desk.trouble, case.failures) == ("warm is full", 1)
    assert case.desk.settled()  # nothing more can be done now
    case.desk.patience.not_before.clear()
    case.tend(2)
    assert case.desk.trouble == "warm is full"  # a look does not mend it
    case.tend(2)
    assert case.desk.trouble is None
    assert case.said() == ["mirror_failed", "mirror_recovered", *["checkpoint_mirrored"] * 2]


def test_trouble_that_lasts_is_said_once_in_ten_minutes_and_tried_for_ever(tmp_path: Path) -> None:
    case = Case(tmp_path, *[ended(None, "not mounted")] * 30)
    for _ in range(30):
        case.desk.patience.not_before.clear()
        case.tend(2)
    assert case.failures > 10
    assert case.said() == ["mirror_failed"]


def test_a_worker_that_says_nothing_is_trouble_while_it_hangs(tmp_path: Path) -> None:
    case = Case(tmp_path, None)
    case.tend(5)
    assert "does not answer" in str(case.desk.trouble)
    assert (case.said(), case.failures) == (["mirror_failed"], 1)


def test_a_source_that_differs_is_trusted_no_longer(tmp_path: Path) -> None:
    case = Case(tmp_path, ended(copies((0, 10))), ended({"source_bad": "trainer.json is not what it was"}))
    case.tend(4)
    assert [local.step for local in case.shelf.local()] == [10]
    assert case.said() == ["mirror_source_differs"]


@pytest.mark.parametrize("newest_was_proven", [True, False])
def test_nothing_is_pruned_before_the_newest_copy_was_proven(tmp_path: Path, newest_was_proven: bool) -> None:
    there = copies(*[(0, step) for step in (1, 2, 3, 10)], *([] if newest_was_proven else [(0, 20)]))
    case = Case(tmp_path, ended(there), *([DONE] if newest_was_proven else []), ended({"gone": ["t0/x"]}))
    assert ("prune" in case.tend(4)) is newest_was_proven


def test_a_look_before_a_launch_gives_up_a_worker_that_hangs(tmp_path: Path) -> None:
    case = Case(tmp_path, None)
    assert not case.fallback.look(case.checkpoint(20), HISTORY, convicted=False)  # nothing newer is known
    assert case.tasks.cancelled == 1
    assert case.said() == ["mirror_failed"]


def test_a_newer_copy_is_waited_for_as_long_as_it_takes(tmp_path: Path) -> None:
    case = Case(tmp_path, ended(None, "away"), ended(None, "away"), ended(copies((0, 30))))
    case.desk.book.looked([mirror_desk.Mirrored(0, 30, f"{30:08x}", run_id=RUN_ID)])
    assert not case.fallback.look(case.checkpoint(20), HISTORY, convicted=False)
    assert case.pauses == 2
    assert case.said().count("mirror_awaited") == 1
    told = dict(case.words)["mirror_awaited"]["message"]
    assert "step 20 is the newest proven here" in told


def test_lost_rollbacks_come_back_before_anything_is_chosen(tmp_path: Path) -> None:
    log = ChainedLog(tmp_path / "copy.jsonl")
    log.append(Timeline(1, 0, 10, (), "operator").body())
    log.close()
    told = copies((1, 30)) | {"timelines": (tmp_path / "copy.jsonl").read_text()}
    case = Case(tmp_path / "home", ended(told))
    assert case.fallback.look(None, HISTORY, convicted=False)
    assert case.desk.history() == [(1, None), (0, 10)]
    assert case.run.timelines.read_bytes() == (tmp_path / "copy.jsonl").read_bytes()


def test_a_step_is_not_fetched_while_the_mirror_cannot_be_asked(tmp_path: Path) -> None:
    case = Case(tmp_path, ended(None, "away"))
    with pytest.raises(Transient, match="away"):
        case.fallback.fetch_step(5, HISTORY)
    assert mirror_fallback.LOOK_S < mirror_fallback.FETCH_S
