"""Trainers of the user's own that save slowly, killed while they do: what each launch begins from.

The same at full length: `scripts/chaos external`.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import file_request
from support.external_kills.killer import Victim
from support.external_kills.laws import Ledger, begun_at, notes_of
from support.external_kills.older_transformers import why_not
from support.external_kills.rounds import Rounds, each_line
from support.external_kills.scenario import NAMES, Pace, Scenario
from support.processes import kill_tree
from support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SHORT = Pace(save_s=6, pause_s=4, step_s=0.3, every=30)


def require(trainer: str) -> None:
    """Skip loudly what a machine without a package index cannot run."""
    if trainer.startswith("hf4") and (why := why_not()):
        warnings.warn(f"TRANSFORMERS 4 NOT TESTED: {why}", stacklevel=2)
        pytest.skip(why)


@pytest.mark.parametrize("name", NAMES)
def test_each_launch_begins_from_a_finished_save_and_nothing_is_lost(tmp_path: Path, name: str) -> None:
    require(name)
    report = Rounds(Scenario.named(name, SHORT), tmp_path / "kills", seed=0).run(3)
    assert not report.breaks, "\n".join([*each_line(report), *report.kills])


def test_after_a_rollback_the_trainer_of_transformers_4_keeps_its_new_checkpoints(tmp_path: Path) -> None:
    """It keeps the two with the highest numbers, of all names that begin as those of its own."""
    require("hf4")
    scenario = Scenario("hf4", "told", Pace(save_s=1, pause_s=0.5, step_s=0.05, every=10), save_total_limit=2)
    run, ledger = scenario.make(tmp_path), Ledger(tmp_path / "ledger.jsonl")
    victim = Victim(run, scenario.environ(tmp_path), random.Random(0))
    try:
        wait_until(lambda: run.checkpoints()[3:], what="four sealed checkpoints")
        file_request(run.data.pipeline.layout, TRAIN_SUPERVISOR, "rollback", {"to": 20}, {"timeline": 0})
        wait_until(lambda: ledger.launches()[1:], what="a launch")
        assert begun_at(ledger.launches()[-1]) == 20
        kept = wait_until(lambda: notes_of(ledger.launches()[-1], "kept"), what="a save")[0]["names"]
        assert "checkpoint-30" in kept, f"the trainer has removed its newest, and kept {kept}"
    finally:
        kill_tree(victim.daemon.pid)
        victim.daemon.kill()
