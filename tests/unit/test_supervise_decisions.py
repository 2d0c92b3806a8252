"""The supervisor's decisions, as tables: gate, exit classes, what follows an exit, liveness, cleaning."""

from __future__ import annotations

import pytest

from stoker.kit.process.process_id import ProcessId
from stoker.supervise.health.exit_class import Ending, Exit, ExitClass, classify
from stoker.supervise.health.leftovers import Cleaning, Leftovers, decide
from stoker.supervise.health.liveness import Silence, StepTimes, judge
from stoker.supervise.health.restart_policy import after_exit
from stoker.supervise.run.gates import DataInView, GateWants, start_gate

WANTS = GateWants(sets=2, train_tokens=1000, heldout_tokens=50, seq_len=64)


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (DataInView(sets=2, train_tokens=1000, val_tokens=50, complete=False), "open"),
        (DataInView(sets=1, train_tokens=9000, val_tokens=90, complete=False), "closed"),
        (DataInView(sets=2, train_tokens=999, val_tokens=50, complete=False), "closed"),
        (DataInView(sets=2, train_tokens=1000, val_tokens=49, complete=False), "closed"),
        (DataInView(sets=1, train_tokens=65, val_tokens=0, complete=True), "open"),
        (DataInView(sets=1, train_tokens=64, val_tokens=0, complete=True), "hopeless"),
        (DataInView(sets=0, train_tokens=0, val_tokens=0, complete=True), "hopeless"),
    ],
)
def test_a_run_starts_when_its_wants_are_met_or_no_more_will_come(data: DataInView, state: str) -> None:
    assert start_gate(data, WANTS).state == state


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending(0, None, stop_asked=False, hung=False), ExitClass.FINISHED),
        (Ending(0, None, stop_asked=True, hung=False), ExitClass.STOPPED),
        (Ending(65, None, stop_asked=False, hung=False), ExitClass.BAD_DATA),
        (Ending(74, None, stop_asked=False, hung=False), ExitClass.STORAGE),
        (Ending(75, None, stop_asked=False, hung=False), ExitClass.TRY_AGAIN),
        (Ending(78, None, stop_asked=False, hung=False), ExitClass.WRONG_CONFIG),
        (Ending(1, None, stop_asked=False, hung=False), ExitClass.CRASHED),
        (Ending(1, None, stop_asked=True, hung=False), ExitClass.CRASHED),
        (Ending(None, 9, stop_asked=False, hung=False), ExitClass.KILLED),
        (Ending(None, 9, stop_asked=True, hung=False), ExitClass.KILLED),
        (Ending(0, None, stop_asked=True, hung=True), ExitClass.HUNG),
        (Ending(None, None, stop_asked=False, hung=False), ExitClass.GUARD_LOST),
    ],
)
def test_every_end_of_a_launch_has_its_class(ending: Ending, kind: ExitClass) -> None:
    assert classify(ending).kind is kind


def test_a_signal_is_told_by_its_name() -> None:
    assert "SIGKILL" in classify(Ending(None, 9, stop_asked=False, hung=False)).detail


def after(
    kind: ExitClass, *, progressed: bool = False, fruitless: int = 0, most: int = 3
) -> tuple[int | None, int]:
    following = after_exit(Exit(kind, "…"), progressed=progressed, fruitless=fruitless, most_fruitless=most)
    return following.exit_code, following.fruitless


def test_launches_that_get_nowhere_are_counted_and_the_last_one_ends_the_run() -> None:
    assert after(ExitClass.KILLED) == (None, 1)
    assert after(ExitClass.KILLED, fruitless=1) == (None, 2)
    assert after(ExitClass.KILLED, fruitless=2) == (70, 3)


def test_progress_forgives_what_was_before() -> None:
    assert after(ExitClass.KILLED, fruitless=2, progressed=True) == (None, 0)


def test_a_full_disk_is_waited_out_and_never_ends_the_run() -> None:
    assert after(ExitClass.STORAGE, fruitless=2) == (None, 2)
    assert after(ExitClass.TRY_AGAIN, fruitless=2) == (None, 2)


def test_a_wrong_configuration_is_not_tried_again() -> None:
    assert after(ExitClass.WRONG_CONFIG, progressed=True) == (78, 0)


def test_bad_data_asks_for_the_proof_of_what_was_read_and_ends_with_its_own_code() -> None:
    assert after_exit(
        Exit(ExitClass.BAD_DATA, "…"), progressed=False, fruitless=0, most_fruitless=3
    ).prove_data
    assert after(ExitClass.BAD_DATA, fruitless=2) == (65, 3)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending(None, 7, stop_asked=False, hung=False), ExitClass.BAD_DATA),  # SIGBUS: a map is cut short
        (
            Ending(74, None, False, False, "OSError: [Errno 5] Input/output error: '/hot/t.bin'"),
            ExitClass.STORAGE,
        ),
    ],
)
def test_data_that_could_not_be_read_is_proven_before_the_next_launch(
    ending: Ending, kind: ExitClass
) -> None:
    exit_ = classify(ending)
    assert exit_.kind is kind
    assert after_exit(exit_, progressed=True, fruitless=0, most_fruitless=3).prove_data


def test_a_full_disk_casts_no_doubt_on_the_data() -> None:
    full = classify(Ending(74, None, False, False, "StorageError: cannot write: No space left on device"))
    assert not after_exit(full, progressed=True, fruitless=0, most_fruitless=3).prove_data


HANG_S = 900.0


@pytest.mark.parametrize(
    ("phase", "silence", "p99", "state"),
    [
        ("train", Silence(5, 5, 0), 1.0, "alive"),
        ("train", Silence(25, 25, 0), 1.0, "suspect"),
        ("train", Silence(25, 25, 0), 6.0, "alive"),  # 5 x 6 s
        ("train", Silence(70, 70, 70), 1.0, "stop"),
        ("train", Silence(70, 70, 3), 1.0, "suspect"),  # silent, but its CPU time grows
        ("train", Silence(70, 70, 70), 8.0, "suspect"),  # 10 x 8 s
        ("train", Silence(900, 900, 0), 1.0, "stop"),
        ("train", Silence(1, 900, 0), 1.0, "stop"),  # it talks, but makes no step
        ("load", Silence(800, 800, 800), None, "alive"),
        ("load", Silence(900, 900, 900), None, "stop"),
        ("compile", Silence(1700, 1700, 0), None, "alive"),
        ("compile", Silence(1800, 1800, 0), None, "stop"),
        ("checkpoint", Silence(120, 120, 120), 0.1, "alive"),
        ("eval", Silence(5, 3600, 0), 0.1, "alive"),  # a long one that tells of itself
        ("eval", Silence(900, 3600, 0), 0.1, "stop"),
        ("wait-data", Silence(5, 86_400, 5), 0.1, "alive"),
        ("wait-data", Silence(900, 86_400, 900), 0.1, "stop"),
    ],
)
def test_silence_is_judged_by_phase_step_time_and_evidence(
    phase: str, silence: Silence, p99: float | None, state: str
) -> None:
    assert judge(phase, silence, p99, HANG_S).state == state


def test_a_short_hang_limit_is_obeyed() -> None:
    assert judge("train", Silence(6, 6, 0), 0.1, 5.0).state == "stop"


def test_step_times_leave_out_what_came_between_steps() -> None:
    times = StepTimes().stepped(1, 10.0).stepped(2, 11.0).stepped(4, 13.0)  # one datagram was lost
    times = times.interrupted().stepped(5, 90.0).stepped(6, 91.5)  # after an evaluation
    assert times.p99_s() == 1.5


SOMEONE = (ProcessId(1234, 5678),)


@pytest.mark.parametrize(
    ("left", "waited", "asked", "action"),
    [
        (Leftovers(guarded=False, rank0_held=False, processes=()), 0, False, "clear"),
        (Leftovers(guarded=True, rank0_held=True, processes=SOMEONE), 0, False, "wait"),
        (Leftovers(guarded=True, rank0_held=False, processes=SOMEONE), 305, False, "wait"),
        (Leftovers(guarded=True, rank0_held=False, processes=SOMEONE), 311, False, "KILL"),
        (Leftovers(guarded=False, rank0_held=True, processes=SOMEONE), 0, False, "TERM"),
        (Leftovers(guarded=False, rank0_held=True, processes=SOMEONE), 1, True, "wait"),
        (Leftovers(guarded=False, rank0_held=True, processes=SOMEONE), 300, True, "KILL"),
        (Leftovers(guarded=False, rank0_held=True, processes=()), 999, True, "wait"),
    ],
)
def test_leftovers_are_waited_for_then_asked_then_killed(
    left: Leftovers, waited: float, asked: bool, action: Cleaning
) -> None:
    assert decide(left, waited_s=waited, asked=asked, stop_time_s=300) == action
