"""The supervisor's decisions, as tables: gate, step times."""

from __future__ import annotations

import pytest

from stoker.supervise.health.liveness import StepTimes
from stoker.supervise.run.gates import DataInView, RequiredData, start_gate

WANTS = RequiredData(sets=2, train_tokens=1000, heldout_tokens=50, seq_len=64)


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


def test_step_times_leave_out_what_came_between_steps() -> None:
    times = StepTimes().stepped(1, 10.0).stepped(2, 11.0).stepped(4, 13.0)  # one datagram was lost
    times = times.interrupted().stepped(5, 90.0).stepped(6, 91.5)  # after an evaluation
    assert times.p99_s() == 1.5
