"""A run with a phase through the real supervisor: killed around its beginning, and rolled back over it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from stoker.cli.main import exit_code
from stoker.store.record import read_record
from stoker.supervise.audit.audit import audit_run
from stoker.supervise.run.launch_record import read_launches
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

BEGINS, END, BACK, LATER = 12, 22, 10, 20
WIDE = {"name": "wide", "from": BEGINS, "global_batch": 6, "seq_len": 128, "rope": {"theta": 500_000}}
FIRST = {"train__steps": END, "train__phases": [WIDE]}
# Changed after it has begun: it counts from the next launch.
AGAIN = {**FIRST, "train__phases": [{**WIDE, "global_batch": 8}]}


def through_its_phase(template: Path, home: Path, *, with_torch: bool, **settings: Any) -> TrainPipeline:
    """A run that was killed before and after its phase began, rolled back over it, and came to its end."""
    few = {"every": None, "every_steps": 5, "keep_last": 1, "keep_every": 10, "busy": "wait"}
    settings = {"train__checkpoint": few, **settings}
    run = make_training(template, home, with_torch=with_torch, **{**FIRST, **settings})
    with patch.dict(os.environ, STOKER_TEST_STEP_S="0.1"):  # slow enough to be met at its beginning
        daemon = run.start()
    os.kill(run.wait_for_step(BEGINS - 1).pid, signal.SIGKILL)
    os.kill(run.wait_for_step(BEGINS + 2).pid, signal.SIGKILL)
    wait_until(lambda: run.record().get("state") == "finished", 90, "the end of the first history")
    assert daemon.stop() == 0, daemon.said()
    skip = f"{BACK}:{BACK + 1}"
    assert exit_code(["rollback", str(run.data.file), str(BACK), "--skip", skip]) == 0
    assert run.once().returncode == 0
    run = make_training(template, home, with_torch=with_torch, **{**AGAIN, **settings})
    assert exit_code(["rollback", str(run.data.file), str(LATER)]) == 0
    assert run.once().returncode == 0
    return run


def test_a_phase_begins_exactly_at_its_step_whatever_is_killed_and_a_rollback_puts_the_old_settings_back(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = through_its_phase(shard_sets, tmp_path / "run", with_torch=False)
    tokens = {row["step"]: row["tokens"] for row in run.rows() if "loss" in row}  # later timelines last
    sizes = [(tokens[step] - tokens.get(step - 1, 0)) // 64 for step in range(1, END + 1)]
    # A skipped batch moves the data ahead: the last step before the phase reads the longer windows.
    assert sizes == [4] * (BEGINS - 1) + [8] + [12] * (LATER - BEGINS) + [16] * (END - LATER)
    first = [row["tokens"] for row in run.rows() if row["timeline"] == 0 and "loss" in row]
    assert first[BEGINS - 1] == 64 * 4 * BEGINS and first[-1] == first[BEGINS - 1] + 128 * 6 * (END - BEGINS)

    began, again = run.events("phase_began")
    longer = "seq_len 64 -> 128; rope none -> {'theta': 500000.0}; global_batch 4 -> 6"
    told = {"step": BEGINS, "phase": "wide", "message": longer}
    assert {**began, **told, "windows_ahead": 0} == began
    assert {**again, **told, "windows_ahead": 4} == again
    left, changed = run.events("phase_changed")
    shorter = "seq_len 128 -> 64; rope {'theta': 500000.0} -> none; global_batch 6 -> 4"
    assert (left["step"], left["phase"], left["message"]) == (BACK, "", shorter)
    assert (changed["step"], changed["phase"], changed["message"]) == (LATER, "wide", "global_batch 6 -> 8")
    assert {event.get("until") for event in run.events("trainer_launched")} == {BEGINS, None}
    kept = {f"step-{step:09d}" for step in (BACK, BEGINS, LATER, END)}
    assert set(run.checkpoints()) == kept  # BEGINS as a milestone
    launches, _ = read_launches(run.run.launches)
    assert {one.settings.get("phase") for one in launches if one.resume_step < BEGINS} == {""}
    assert "micro_batch" not in next(one for one in launches if one.settings["phase"]).settings["numerics"]
    launch = read_record(run.run.launch)
    assert (launch["phase"], launch["global_batch"], launch["seq_len"]) == ("wide", 8, 128)
    assert audit_run(run.data.pipeline).findings == ()


def test_a_phase_that_a_reload_brings_ends_the_launch_that_would_go_past_its_start(
    shard_sets: Path, tmp_path: Path
) -> None:
    settings = {"train__checkpoint": {"every": None, "every_steps": 1000}, "train__steps": 1000}
    run = make_training(shard_sets, tmp_path / "run", **settings)
    with patch.dict(os.environ, STOKER_TEST_STEP_S="0.2"):
        daemon = run.start()
    run.wait_for_step(1)
    make_training(
        shard_sets, tmp_path / "run", **settings, **{"train__phases": [{"name": "late", "from": 900}]}
    )
    os.kill(daemon.pid, signal.SIGHUP)
    try:
        wait_until(lambda: run.events("trainer_launched")[1:], what="the next launch")
    finally:
        assert daemon.stop() == 0, daemon.said()
    first, second = run.events("trainer_launched")
    assert ("until" in first, second["until"]) == (False, 900)
    assert run.events("trainer_exited")[0]["exit_class"] == "stopped_as_asked"
    assert second["resume_step"] == run.events("trainer_exited")[0]["step"] > 0


@pytest.mark.long
def test_a_run_with_phases_that_was_killed_and_rolled_back_equals_its_replay(
    shard_sets: Path, tmp_path: Path
) -> None:
    half, whole = ({"yarn": {"factor": times, "original_seq_len": 64}} for times in (2, 4))
    phases = [
        {"name": "twice", "from": BEGINS, "seq_len": 128, "global_batch": 3, "rope": half},
        {"name": "fourfold", "from": BEGINS + 5, "seq_len": 256, "rope": whole},
    ]
    run = through_its_phase(shard_sets, tmp_path / "run", with_torch=True, train__phases=phases)
    assert audit_run(run.data.pipeline).findings == ()
    with run.trainer():
        assert exit_code(["replay", str(run.data.file), "main", str(tmp_path / "out")]) == 0
