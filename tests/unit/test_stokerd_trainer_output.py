"""What the supervisor makes of a trainer's output: its steps, its rows, and one word where it reads none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.kit.process import ProcessId
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.trainer import Trainer
from stoker.supervise.trainer_kind import EXTERNAL
from stokerd.supervision.trainer import output as trainer_output
from stokerd.supervision.trainer.control import TrainerControl
from stokerd.supervision.trainer.output import LOOK_S, UNREAD_S, TrainerOutput
from support.external_trainer import make_external

LAUNCH = Launch("a", 0, None, 0, Path("socket"), reads_output=True)


class Followed:
    """A launch with a file of its output, and a clock of its own."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, **external: Any) -> None:
        pipeline = make_external(home, "", train__external=external).data.pipeline
        self.layout = pipeline.layout.run("main")
        self.layout.create()
        self.told: list[dict[str, Any]] = []
        events = SimpleNamespace(record=lambda word, **more: self.told.append({"event": word, **more}))
        monkeypatch.setattr(trainer_output, "time", SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 0.0))
        self.output = TrainerOutput(
            cast(Any, SimpleNamespace(pipeline=pipeline, layout=self.layout, events=events)), LAUNCH
        )
        self.trainer = Trainer(LAUNCH, ProcessId(1, 1), TrainerView("a", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)

    def after(self, now: float, printed: str = "", *said: str, is_last: bool = False) -> int | None:
        with self.layout.output("a").open("a") as out:
            out.write(printed)
        datagrams = [f"LAUNCH=a\n{one}".encode() for one in said]
        self.trainer = self.trainer.after_words(datagrams, now)
        self.trainer = self.output.poll(self.trainer, datagrams, now, is_last=is_last)
        return self.trainer.view.step

    def losses(self) -> list[tuple[int, float]]:
        self.output.close()
        return [(row["step"], row["loss"]) for row in map(json.loads, self.layout.metrics.open())]


def test_a_look_is_taken_each_second_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Followed(tmp_path, monkeypatch)
    assert run.after(1.0, "iter 0: loss 4.5\n") == 0
    assert run.after(1.0 + LOOK_S / 2, "iter 10: loss 4.0\n") == 0
    assert run.after(1.0 + LOOK_S) == 10
    assert run.after(1.1 + LOOK_S, "iter 20: loss 3.5", is_last=True) == 20
    assert run.losses() == [(0, 4.5), (10, 4.0), (20, 3.5)]


def test_that_no_step_can_be_read_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Followed(tmp_path, monkeypatch)
    for now in (UNREAD_S - 1, UNREAD_S, UNREAD_S + 10):
        run.after(now, f"working since {now}\n")
    (told,) = run.told
    assert told["event"] == "steps_unread"
    assert told["message"].startswith("step: auto read nothing for 10 minutes, ")
    assert "train.external.step" in told["message"]


@pytest.mark.parametrize("who", ["is read", "tells", "is not read"])
def test_of_a_trainer_whose_steps_are_known_or_not_wanted_it_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    run = Followed(tmp_path, monkeypatch, step=None if who == "is not read" else "auto")
    run.after(5.0, "iter 0: loss 4.5\n" if who != "tells" else "", *["STEP=1"] * (who == "tells"))
    run.after(UNREAD_S + 10, "nothing\n")
    assert run.told == []
    assert run.trainer.view.step == {"is read": 0, "tells": 1, "is not read": None}[who]


def test_a_trainer_that_tells_its_steps_is_not_read_and_its_rows_are_those_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Followed(tmp_path, monkeypatch)
    run.after(1.0, "iter 5: loss 4.5\n")
    assert run.after(3.0, "iter 90: loss 9.9\n", "PHASE=train\nSTEP=6\nLOSS=4.25") == 6
    assert run.after(9.0, "iter 91: loss 9.9\n", "PHASE=train\nSTEP=7\nLOSS=4.0") == 7
    assert run.losses() == [(5, 4.5), (6, 4.25), (7, 4.0)]
    assert run.trainer.read_as == "nanoGPT" and not run.trainer.is_read


def test_its_wait_for_data_is_not_believed_because_nobody_knows_its_plan(tmp_path: Path) -> None:
    trainer = Trainer(LAUNCH, ProcessId(1, 1), TrainerView("a", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)
    assert not TrainerControl(cast(Any, SimpleNamespace(context=None, kind=EXTERNAL)))._lacks_data(trainer)


def test_a_bar_that_gets_on_is_progress_and_one_that_stands_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Followed(tmp_path, monkeypatch)
    run.after(100.0, "\rMap:  40%|####      | 2000/5000 [00:01<00:00, 42.61 examples/s]\r")
    assert (run.trainer.view.moved_at, run.trainer.view.step) == (100.0, None)
    run.after(200.0, "\rMap:  40%|####      | 2000/5000 [01:41<00:00, 22.61 examples/s]\r")
    assert run.trainer.view.moved_at == 100.0
