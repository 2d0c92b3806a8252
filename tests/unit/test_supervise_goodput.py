"""Where a run's time goes: every second in one bucket, and goodput is what a proven checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.kit.process import ProcessId
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.record import read_record, write_record
from stoker.supervise.health.evidence import Evidence
from stoker.supervise.health.exits import Exit, ExitClass
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import PHASES, TrainerView, heard
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.goodput import BUCKETS, MOST_SPANS, Goodput, bucket_of, read_account
from stoker.supervise.run.launch_ends import LaunchEnd, note_end, read_ends
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stokerd.supervision.books import goodput as books_module
from stokerd.supervision.books.goodput import GoodputBooks


def after(*history: tuple[str, Any]) -> Goodput:
    """The account after (bucket, seconds) spent, ("step", n) told, ("proven", n) and ("settled", n)."""
    account = Goodput(0.0)
    for word, value in history:
        if word == "step":
            account.passed(account.at, account.bucket)
            account.told(*value if isinstance(value, tuple) else (value, 0.0))
        elif word in ("proven", "settled"):
            getattr(account, word)(value)
        else:
            account.passed(account.at, word)
            account.passed(account.at + value, word)
    account.passed(account.at, None)
    return account


def spent(account: Goodput) -> dict[str, float]:
    return {name: round(value, 6) for name, value in account.totals.items() if value}


def test_a_step_counts_once_a_proven_checkpoint_holds_it_and_no_sooner() -> None:
    account = after(("load", 2.0), ("steps", 10.0), ("step", 10))
    assert (spent(account), account.undecided_s, account.ratio) == ({"load": 2.0}, 10.0, 0.0)
    account.proven(4)  # of one span: as many seconds as steps
    assert (spent(account), account.undecided_s) == ({"load": 2.0, "steps": 4.0}, 6.0)
    account.proven(10)
    assert (spent(account), account.ratio) == ({"load": 2.0, "steps": 10.0}, 10.0 / 12.0)


def test_steps_after_the_newest_checkpoint_and_one_under_way_are_lost_with_the_launch() -> None:
    history = [("steps", 6.0), ("step", 6), ("steps", 4.0), ("step", 10), ("steps", 0.5), ("settled", 6)]
    assert spent(after(*history)) == {"steps": 6.0, "redone": 4.5}


def test_steps_made_again_after_a_rollback_are_redone_and_no_count_falls() -> None:
    before = [("steps", 10.0), ("step", 10), ("proven", 10), ("settled", 4)]
    assert spent(after(*before)) == {"steps": 10.0}
    again = [*before, ("steps", 20.0), ("step", 14), ("proven", 14)]
    assert spent(after(*again)) == {"steps": 10.0 + 8.0, "redone": 12.0}


def test_steps_held_before_the_account_began_are_made_again_too() -> None:
    history = [("proven", 10), ("settled", 4), ("steps", 6.0), ("step", 10), ("proven", 10)]
    assert spent(after(*history)) == {"redone": 6.0}


def test_a_steps_wait_for_its_data_is_no_training() -> None:
    waited = after(("steps", 10.0), ("step", (5, 0.4)), ("proven", 5))
    assert spent(waited) == {"steps": 8.0, "data_wait": 2.0}
    absurd = after(("steps", 1.0), ("step", (5, 9.0)), ("proven", 5))
    assert spent(absurd) == {"data_wait": 1.0}


def test_many_steps_without_a_checkpoint_take_no_more_room_and_lose_no_second() -> None:
    count = 3 * MOST_SPANS + 1
    account = after(*[word for step in range(1, count + 1) for word in (("steps", 1.0), ("step", step))])
    assert len(account.spans) <= MOST_SPANS and account.undecided_s == count
    account.proven(count - 1)
    assert account.totals["steps"] == pytest.approx(count - 1)


EVENTS = st.one_of(
    st.tuples(st.sampled_from([None, *BUCKETS]), st.floats(0, 1000)),
    st.tuples(st.just("step"), st.tuples(st.integers(0, 100), st.floats(0, 100))),
    st.tuples(st.sampled_from(["proven", "settled"]), st.integers(0, 100)),
)


@given(st.lists(EVENTS, max_size=60))
def test_the_buckets_sum_to_the_wall_time_and_never_fall_whatever_happens(history: list[Any]) -> None:
    account, wall, before = Goodput(0.0), 0.0, dict.fromkeys(BUCKETS, 0.0)
    for word, value in history:
        if word == "step":
            account.told(*value)
        elif word in ("proven", "settled"):
            getattr(account, word)(value)
        else:
            wall += value if account.bucket is not None else 0.0
            account.passed(account.at + value, word)
        assert account.wall_s == pytest.approx(wall, rel=1e-3)
        assert all(account.totals[name] >= before[name] - 1e-9 for name in BUCKETS)
        before = dict(account.totals)
    assert read_account(vars(account)) == account


def test_every_phase_has_its_bucket() -> None:
    assert {phase: bucket_of(phase, None) for phase in Phase} == {
        Phase.CLEANING: "launch",
        Phase.PROVING: "proving",
        Phase.BACKOFF: "backoff",
        Phase.WAITING: "data_wait",
        Phase.TRAINING: None,
        Phase.HALTED: "halted",
        Phase.FINISHED: None,
    }
    assert bucket_of(Phase.WAITING, None, evaluates=True) == "evaluation"
    assert bucket_of(Phase.TRAINING, "train", evaluates=True) == "steps"
    found = {doing: bucket_of(Phase.TRAINING, doing) for doing in (*PHASES, "")}
    assert found["checkpoint"] == "save_stall" and found[""] == "launch" and found["train"] == "steps"
    assert set(found.values()) <= set(BUCKETS)


def test_a_launch_loads_from_its_first_word_on_and_ends_with_its_last() -> None:
    view = TrainerView("l1", 5.0, 5.0)
    told = heard(view, {"phase": "load"}, 6.0)
    ended = heard(heard(told, {"phase": "train", "step": 3}, 7.0), {"finished": "steps"}, 8.0)
    assert (view.doing, told.doing, ended.doing) == ("", "load", "")


# The books


class Ground:
    """The books of a run under a clock of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now, self.wall = root, 1000.0, 5e8
        (root / "quarantine").mkdir()
        monkeypatch.setattr(books_module, "now_s", lambda: self.now)
        monkeypatch.setattr(books_module, "time", SimpleNamespace(time=lambda: self.wall))
        self.layout, self.record = RunLayout(root), SimpleNamespace(finished=None)
        self.start()

    def start(self, *, is_reloaded: bool = False) -> None:
        events: Any = SimpleNamespace(record=lambda *_, **__: None)
        self.books = GoodputBooks(self.layout, self.root / "quarantine", events, is_reloaded=is_reloaded)

    def pass_(self, seconds: float) -> None:
        self.now, self.wall = self.now + seconds, self.wall + seconds

    def look(self, phase: Phase, trainer: Trainer | None = None, proven: int = 0) -> None:
        self.books.refresh(RunState(phase, 0.0, trainer=trainer), cast(Any, self.record), proven)

    def trainer(self, **said: Any) -> Trainer:
        view = TrainerView("l1", 1.0, 0.0, phase="train", **said)
        launch = Launch("l1", 0, None, 0, Path("x"))
        return Trainer(launch, ProcessId(5, 50), view, Stillness(0.0, 0.0), 0.0, evidence=Evidence(step=9))

    def launched(self, name: str = "l1") -> None:
        self.books.launched(Launch(name, 0, None, 0, Path("x")))
        self.look(Phase.TRAINING, self.trainer())

    def ends(self) -> list[LaunchEnd]:
        return read_ends(self.layout.runs)[0]


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(tmp_path, monkeypatch)


def settle(ground: Ground, step: int) -> None:
    ground.books.settled(Checkpoint(Path(f"step-{step:09d}"), step, {}))


def test_the_lines_of_the_launches_hold_every_second_and_what_each_launch_was_worth(ground: Ground) -> None:
    ground.look(Phase.WAITING)
    ground.pass_(3.0)
    ground.launched()
    ground.pass_(10.0)
    trainer = ground.trainer(step=10)
    ground.look(Phase.TRAINING, trainer)
    ground.books.ended(trainer, Exit(ExitClass.CRASHED, "exit code 1"))
    ground.look(Phase.BACKOFF)
    ground.pass_(5.0)
    ground.look(Phase.PROVING, proven=8)
    settle(ground, 8)
    (one,) = ground.ends()
    assert one.seconds == {"data_wait": 3.0, "steps": 8.0, "redone": 2.0, "backoff": 5.0}
    assert (one.last_step, one.proven_step, one.exit_class, one.goodput) == (10, 8, "crashed", 8.0 / 18.0)
    assert one.evidence["step"] == 9 and one.begin and one.end
    assert ground.books.shown()["ratio"] == pytest.approx(8.0 / 18.0)
    ground.launched("l2")
    ground.pass_(1.0)
    ground.look(Phase.CLEANING, proven=8)
    settle(ground, 8)
    settle(ground, 8)
    assert [end.seconds for end in ground.ends()[1:]] == [{"redone": 1.0}]


def test_a_supervisor_killed_with_its_launch_loses_a_minute_and_the_line_is_completed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.look(Phase.WAITING)
    ground.launched()
    for step in range(1, 10):  # books are written after 60 s
        ground.pass_(10.0)
        ground.look(Phase.TRAINING, ground.trainer(step=step))
    ground.pass_(30.0)
    ground.start()  # without a word to the books
    account = ground.books.account
    assert account.wall_s == pytest.approx(120.0)
    assert 30.0 <= account.totals["down"] <= 30.0 + 60.0
    with monkeypatch.context() as patch:
        patch.setattr(ground.books, "keep", lambda: None)  # killed just after the line
        settle(ground, 3)
    ground.start()
    settle(ground, 3)
    (one,) = ground.ends()
    assert (one.exit_class, one.end, one.last_step, one.proven_step) == (None, None, 6, 3)
    assert sum(one.seconds.values()) == pytest.approx(120.0)


def test_a_counter_begins_again_with_the_supervisor_and_goes_on_over_a_reload(ground: Ground) -> None:
    ground.look(Phase.HALTED)
    ground.pass_(100.0)
    ground.look(Phase.HALTED)  # writes the books
    ground.start(is_reloaded=True)
    assert ground.books.shown()["since_start"]["halted"] == 100.0
    ground.pass_(30.0)
    ground.start()  # killed
    shown = ground.books.shown()
    assert (shown["seconds"]["halted"], shown["since_start"]["halted"]) == (100.0, 0.0)
    assert shown["since_start"]["down"] == 30.0


@pytest.mark.parametrize(("jump_s", "other_boot", "down_s"), [(86400.0, False, 50.0), (-86400.0, True, 0.0)])
def test_a_clock_that_jumps_changes_nothing_or_adds_nothing(
    ground: Ground, jump_s: float, other_boot: bool, down_s: float
) -> None:
    ground.look(Phase.HALTED)
    ground.books.keep()
    ground.pass_(50.0)
    ground.wall += jump_s
    if other_boot:
        body = read_record(ground.layout.goodput)
        write_record(ground.layout.goodput, body | {"boot": "another"})
    ground.start()
    assert ground.books.account.totals["down"] == down_s


def test_the_time_since_another_boot_is_told_by_the_wall_clock(ground: Ground) -> None:
    ground.look(Phase.HALTED)
    ground.books.keep()
    write_record(ground.layout.goodput, read_record(ground.layout.goodput) | {"boot": "another"})
    ground.wall, ground.now = ground.wall + 70.0, 3.0
    ground.start()
    assert ground.books.account.totals["down"] == 70.0


def test_a_reload_is_no_time_without_a_supervisor(ground: Ground) -> None:
    ground.look(Phase.HALTED)
    ground.books.keep()
    ground.pass_(2.0)
    ground.start(is_reloaded=True)
    ground.look(Phase.HALTED)
    assert spent(ground.books.account) == {"halted": 2.0}


def test_no_time_is_counted_before_the_runs_begin_and_after_its_finish(ground: Ground) -> None:
    ground.books.refresh(RunState(Phase.WAITING, 0.0), None, 0)
    ground.pass_(100.0)
    ground.look(Phase.WAITING)
    ground.pass_(1.0)
    ground.record.finished = "steps"
    ground.look(Phase.FINISHED)
    ground.books.keep()
    ground.pass_(500.0)
    ground.start()
    ground.look(Phase.PROVING)
    ground.pass_(1.0)
    ground.look(Phase.FINISHED)
    assert spent(ground.books.account) == {"data_wait": 1.0}


def test_a_full_disk_loses_no_launch(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.launched()
    with monkeypatch.context() as patch:
        patch.setattr(ChainedLog, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            settle(ground, 0)
    settle(ground, 0)
    assert [one.launch for one in ground.ends()] == ["l1"]


def test_what_is_no_launch_in_the_log_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    note_end(path, LaunchEnd("l1", 0, 0, "2026-11-20T12:00:00Z"))
    log = ChainedLog(path)
    log.append({"v": 1, "timeline": 0})
    log.close()
    ends, damage = read_ends(path)
    assert [one.launch for one in ends] == ["l1"] and "entry 1 is no launch" in damage[0]
