"""What the supervisor makes of its loss watch: events told once over restarts, and a rollback for a spike."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.kit.process import ProcessId
from stoker.observe.gpus import Cards
from stoker.plan.timelines import read_timelines
from stoker.store.errors import StorageError
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase
from stoker.supervise.trainer import Trainer
from stokerd.supervision.trainer.watches import Watches
from support.run_ground import Ground

USUAL, HIGH = 3.0, 4.0


class Watched(Ground):
    """A run whose checkpoints are of steps 10, 20 and 30 and whose losses are usual up to step 100."""

    def __init__(self, home: Path, **changes: Any) -> None:
        super().__init__(home, **changes)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.run.context.events.record = lambda word, *_, **more: self.told.append((word, more))  # type: ignore[method-assign]
        self.run.change(phase=Phase.TRAINING)
        self.watches = Watches(self.run)
        self.step = 0

    def log(self, first: int, last: int, loss: float, timeline: int = 0) -> None:
        self.files.metrics.parent.mkdir(parents=True, exist_ok=True)
        with self.files.metrics.open("a") as log:
            for step in range(first, last + 1):
                noise = 0.01 * (-1) ** step
                row = {"step": step, "loss": loss + noise, "timeline": timeline, "position": [0, 4 * step]}
                log.write(json.dumps(row) + "\n")

    def trains(self, launch: str = "l1", **view: Any) -> None:
        """A trainer that runs, and says this of itself."""
        now = 0.0
        started = Launch(launch, 0, None, 0, Path("/nowhere"))
        said = replace(TrainerView(launch, now, now), **{"phase": "train", **view})
        trainer = Trainer(started, ProcessId(1, 1), said, Stillness(now, now), now)
        self.run.change(phase=Phase.TRAINING, trainer=trainer)

    def log_speed(self, steps: int, tokens_per_s: float, **more: Any) -> None:
        """Steps of ten seconds at the usual speed of 1,000."""
        with self.files.metrics.open("a") as log:
            for step in range(self.step + 1, self.step + steps + 1):
                row = {"step": step, "loss": USUAL, "timeline": 0, "tokens": 10_000 * step}
                row |= {"tokens_per_s": tokens_per_s, "micro_batch": 8, "data_wait_s": 1.0, **more}
                log.write(json.dumps(row) + "\n")
        self.step += steps

    def look(self) -> list[str]:
        self.told.clear()
        self.watches._look_at = 0.0
        self.watches.refresh(Cards())
        return [word for word, _ in self.told]


def test_each_begin_and_end_is_told_once_also_by_the_next_supervisor(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.log(1, 100, USUAL)
    assert run.look() == []
    run.log(101, 103, HIGH)
    assert run.look() == ["loss_spike"] and run.look() == []
    assert run.record.watched["spike"]["windows"] == [[0, 400], [0, 412]]
    after = Watched(tmp_path)
    assert after.look() == [] and after.record.watched == run.record.watched
    after.log(104, 130, USUAL)
    assert after.look() == ["loss_recovered"] and after.record.watched == {}
    assert Watched(tmp_path).look() == []


def test_what_began_and_ended_while_no_supervisor_looked_is_told_as_it_stands(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.log(1, 100, USUAL)
    run.log(101, 105, HIGH)
    assert run.look() == ["loss_spike"], "it began before this supervisor did"
    run.log(106, 130, USUAL)
    run.log(131, 140, HIGH)
    assert Watched(tmp_path).look() == ["loss_recovered", "loss_spike"]
    assert Watched(tmp_path).record.watched["spike"]["first"] == 131


def test_a_spike_of_one_look_is_told_with_its_end(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.log(1, 100, USUAL)
    run.look()
    run.log(101, 105, HIGH)
    run.log(106, 130, USUAL)
    assert run.look() == ["loss_spike", "loss_recovered"] and run.record.watched == {}


def test_what_a_full_disk_kept_from_the_record_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(tmp_path)
    run.log(1, 100, USUAL)
    run.look()
    run.log(101, 105, HIGH)
    with monkeypatch.context() as patched:

        def full(*_: Any, **__: Any) -> None:
            raise StorageError("full")

        patched.setattr(run.run.store, "change", full)
        assert run.look() == []
    assert run.look() == ["loss_spike"]


def test_a_spike_is_left_alone_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.log(1, 100, USUAL)
    run.log(101, 105, HIGH)
    assert run.look() == ["loss_spike"] and run.record.fork is None


def test_with_rollback_a_spike_takes_the_run_back_once(tmp_path: Path) -> None:
    run = Watched(tmp_path, supervise__on_spike="rollback")
    run.log(1, 100, USUAL)
    run.log(101, 105, HIGH)
    run.run.change(phase=Phase.WAITING)
    assert run.look() == ["loss_spike"] and run.record.fork is None, "there is no trainer to stop"
    run.run.change(phase=Phase.TRAINING)
    assert run.look() == []
    fork = run.record.fork
    assert fork is not None and (fork["to"], fork["skip"]) == (30, ((100, 105),))
    assert run.record.watched["spike"]["answer"] == "rollback"
    decided = dict(fork)
    assert run.look() == [] and run.record.fork == decided
    assert run.roll_back() and read_timelines(run.files.timelines).forks[0].reason.startswith("loss_spike: ")
    run.log(31, 110, USUAL, timeline=1)
    assert run.look() == ["loss_recovered"] and run.record.watched == {}
    assert run.told[0][1]["message"] == "the run went back to before it"


def test_a_spike_that_is_over_before_anybody_looks_takes_the_run_back_too(tmp_path: Path) -> None:
    run = Watched(tmp_path, supervise__on_spike="rollback")
    run.log(1, 50, USUAL)
    run.log(51, 55, HIGH)
    run.log(56, 160, USUAL)
    assert run.look() == [] and run.record.fork is None, "one from before this supervisor is past"
    run.log(161, 165, HIGH)
    run.log(166, 190, USUAL)
    assert run.look() == ["loss_spike", "loss_recovered"]
    fork = run.record.fork
    assert fork is not None and (fork["to"], fork["skip"]) == (30, ((160, 165),))


def test_a_spike_beyond_the_limit_is_left_alone_and_that_is_told_once(tmp_path: Path) -> None:
    limits = {"supervise__on_spike": "rollback", "supervise__skips_in_1000_steps": 0}
    run = Watched(tmp_path, **limits)
    run.log(1, 100, USUAL)
    run.log(101, 105, HIGH)
    assert run.look() == ["loss_spike", "spike_left_alone"] and run.look() == []
    assert run.record.fork is None and Watched(tmp_path, **limits).look() == []


def test_a_slow_trainer_is_told_once_with_evidence_and_so_is_its_end(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.trains()
    assert run.look() == []  # the log is known
    run.log_speed(300, 1000.0)
    assert run.look() == []
    run.log_speed(30, 600.0)
    assert run.look() == [], "not for ten minutes yet"
    run.log_speed(19, 600.0)
    assert run.look() == ["training_slow"]
    told = run.told[0][1]
    assert run.look() == []
    assert (told["tokens_per_s"], told["micro_batch"], told["data_wait_share"]) == (600, 8, 0.06)
    assert told["usual"] == pytest.approx(1000, rel=0.01) and told["gpus"] == {}
    assert 0 <= told["steal"] <= 1 and "idle_cpus" in told
    after = Watched(tmp_path)
    after.step = run.step
    after.trains()
    assert after.look() == [], "the next supervisor knows that it was told"
    after.log_speed(70, 1000.0)
    assert after.look() == ["speed_recovered"] and after.record.watched == {}


@pytest.mark.parametrize("view", [{"waits": True}, {"phase": "eval"}, {"phase": "checkpoint"}])
def test_time_that_is_no_steps_makes_no_trainer_slow(tmp_path: Path, view: dict[str, Any]) -> None:
    run = Watched(tmp_path)
    run.trains()
    run.look()
    run.log_speed(300, 1000.0)
    run.look()
    for _ in range(5):
        run.trains(**view)
        run.look()
        run.trains()
        run.log_speed(1, 5.0)  # 2,000 seconds
        assert run.look() == []
        run.log_speed(1, 1000.0)
        assert run.look() == []


def test_steps_over_which_the_machine_slept_make_no_trainer_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(tmp_path)
    run.trains()
    run.look()
    run.log_speed(300, 1000.0)
    run.look()
    clock = time.monotonic
    for slept in range(1, 6):
        monkeypatch.setattr(time, "monotonic", lambda slept=slept: clock() + 3600.0 * slept)
        run.watches.refresh(Cards())
        run.log_speed(1, 2.0)
        assert run.look() == []


def test_another_launch_is_judged_by_its_own_ten_minutes(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.trains()
    run.look()
    run.log_speed(300, 1000.0)
    run.look()
    run.log_speed(25, 600.0)
    assert run.look() == []
    run.trains("l2")
    run.log_speed(25, 600.0)
    assert run.look() == []
    run.log_speed(25, 600.0)
    assert run.look() == ["training_slow"]
