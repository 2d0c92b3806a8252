"""The supervisor's decisions, as tables: gate, exit classes, liveness."""

from __future__ import annotations

import pytest

from stoker.supervise.health.guarded import ExitClass, GuardedEnd, classify
from stoker.supervise.health.liveness import StepTimes, judge
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
    ("code", "signum", "is_asked", "kind"),
    [
        (0, None, False, ExitClass.FINISHED),
        (0, None, True, ExitClass.STOPPED),
        (65, None, False, ExitClass.BAD_DATA),
        (71, None, False, ExitClass.GPU_MEMORY),
        (74, None, False, ExitClass.STORAGE),
        (75, None, False, ExitClass.TRY_AGAIN),
        (76, None, False, ExitClass.NON_FINITE),
        (78, None, False, ExitClass.WRONG_CONFIG),
        (1, None, False, ExitClass.CRASHED),
        (1, None, True, ExitClass.CRASHED),
        (None, 9, False, ExitClass.KILLED),
        (None, 9, True, ExitClass.KILLED),
        (None, None, False, ExitClass.GUARD_LOST),
    ],
)
def test_every_end_of_a_launch_has_its_class(
    code: int | None, signum: int | None, is_asked: bool, kind: ExitClass
) -> None:
    end = GuardedEnd(code, signum)
    assert classify(end, is_asked=is_asked, is_hung=False).kind is kind
    assert classify(end, is_asked=True, is_hung=True).kind is ExitClass.HUNG


@pytest.mark.parametrize(("code", "gives_up_with"), [(65, 65), (71, 71), (74, 70), (76, 76), (78, 78)])
def test_a_supervisor_that_gives_up_ends_with_the_code_of_the_kind(code: int, gives_up_with: int) -> None:
    exit_ = classify(GuardedEnd(code, None), is_asked=False, is_hung=False)
    assert exit_.gives_up_with == gives_up_with


def test_a_signal_is_told_by_its_name() -> None:
    assert "SIGKILL" in classify(GuardedEnd(None, 9), is_asked=False, is_hung=False).detail


@pytest.mark.parametrize(
    ("code", "signum", "last_words", "kind", "doubts"),
    [
        (65, None, "a set is bad", ExitClass.BAD_DATA, True),
        (76, None, "the loss of step 7 is nan", ExitClass.NON_FINITE, True),
        (None, 7, None, ExitClass.BAD_DATA, True),  # SIGBUS: a map is cut short
        (74, None, "OSError: [Errno 5] Input/output error: '/hot/t.bin'", ExitClass.STORAGE, True),
        (74, None, "StorageError: cannot write: No space left on device", ExitClass.STORAGE, False),
    ],
)
def test_only_data_that_could_not_be_read_is_proven_before_the_next_launch(
    code: int | None, signum: int | None, last_words: str | None, kind: ExitClass, doubts: bool
) -> None:
    exit_ = classify(GuardedEnd(code, signum), is_asked=False, is_hung=False, last_words=last_words)
    assert (exit_.kind, exit_.doubts_data) == (kind, doubts)


HANG_S = 900.0


def judged(phase: str, silence: tuple[float, float, float], p99_s: float | None, hang_s: float) -> str:
    """The verdict after so many seconds without a word, without a step, and without any work."""
    unheard_s, unmoved_s, still_s = silence
    return judge(
        phase, unheard_s=unheard_s, unmoved_s=unmoved_s, still_s=still_s, p99_s=p99_s, hang_s=hang_s
    )[0]


@pytest.mark.parametrize(
    ("phase", "silence", "p99", "state"),
    [
        ("train", (5, 5, 0), 1.0, "alive"),
        ("train", (25, 25, 0), 1.0, "suspect"),
        ("train", (25, 25, 0), 6.0, "alive"),  # 5 x 6 s
        ("train", (70, 70, 70), 1.0, "stop"),
        ("train", (70, 70, 3), 1.0, "suspect"),  # silent, but its CPU time grows
        ("train", (70, 70, 70), 8.0, "suspect"),  # 10 x 8 s
        ("train", (900, 900, 0), 1.0, "stop"),
        ("train", (1, 900, 0), 1.0, "stop"),  # it talks, but makes no step
        ("load", (800, 800, 800), None, "alive"),
        ("load", (900, 900, 900), None, "stop"),
        ("compile", (1700, 1700, 0), None, "alive"),
        ("compile", (1800, 1800, 0), None, "stop"),
        ("checkpoint", (120, 120, 120), 0.1, "alive"),
        ("eval", (5, 3600, 0), 0.1, "alive"),  # a long one that tells of itself
        ("eval", (900, 3600, 0), 0.1, "stop"),
        ("wait-data", (5, 86_400, 5), 0.1, "alive"),
        ("wait-data", (900, 86_400, 900), 0.1, "stop"),
    ],
)
def test_silence_is_judged_by_phase_step_time_and_evidence(
    phase: str, silence: tuple[float, float, float], p99: float | None, state: str
) -> None:
    assert judged(phase, silence, p99, HANG_S) == state


def test_a_short_hang_limit_is_obeyed() -> None:
    assert judged("train", (6, 6, 0), 0.1, 5.0) == "stop"


def test_step_times_leave_out_what_came_between_steps() -> None:
    times = StepTimes().stepped(1, 10.0).stepped(2, 11.0).stepped(4, 13.0)  # one datagram was lost
    times = times.interrupted().stepped(5, 90.0).stepped(6, 91.5)  # after an evaluation
    assert times.p99_s() == 1.5
