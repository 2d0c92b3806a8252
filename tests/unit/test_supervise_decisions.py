"""The supervisor's decisions, as tables: gate, liveness."""

from __future__ import annotations

import pytest

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
