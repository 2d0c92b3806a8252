"""What a warm worker says with the end of a task is of that task, and never told of the next."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stoker.kit.loop import Waiter
from stoker.kit.workers.parent import Worker, WorkerExit
from stoker.kit.workers.pool import Activity, WorkerPool

Words = list[dict[str, Any]]
DONE = WorkerExit("finished", result={"status": "done"})


class LateWorker:
    """A warm worker of which each task's last word is read with its end, and not before."""

    pid = 0
    ending = False

    def __init__(self) -> None:
        self.ours, its = os.pipe()
        os.write(its, b"x")
        os.close(its)  # so that it always has news
        self.words: Words = []
        self.task: Mapping[str, Any] | None = None

    hear: Any = Worker.hear

    def fileno(self) -> int:
        return self.ours

    def give(self, task: Mapping[str, Any], **_: Any) -> None:
        self.task = task

    def poll(self, _now: float | None = None) -> None:
        return None

    def messages(self) -> Words:
        words, self.words = self.words, []
        return words

    def take_done(self) -> WorkerExit | None:
        if self.task is None:
            return None
        self.words.append({"kind": "hashed", "of": self.task["name"]})
        self.task = None
        return DONE

    def ask_to_stop(self, _grace_s: float) -> None:
        pass

    def stop(self, _grace_s: float) -> None:
        pass

    def wait(self, _until: float) -> None:
        pass


@pytest.fixture(name="late")
def late_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateWorker]:
    worker = LateWorker()

    def start(_module: str, task: Mapping[str, Any], **_: Any) -> LateWorker:
        worker.give(task)
        return worker

    monkeypatch.setattr(Worker, "start", start)
    yield worker
    os.close(worker.ours)


def test_a_pool_hears_them_before_the_next_task(late: LateWorker) -> None:
    waiter = Waiter()
    crew = WorkerPool("test", waiter)
    heard = []
    for name in "abc":
        crew.start(Activity("hash", "m", 60.0, is_reusable=True), name, {"name": name}, None)
        heard += [(job.subject, said["of"]) for job, words, _ in crew.hear() for said in words]
    assert heard == [("a", "a"), ("b", "b"), ("c", "c")]
    assert late.words == []
    waiter.close()
