"""The verdict over a pipeline: a table of what is found, and of what a person is told to do."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.kit.event_types import event_type
from stoker.observe.verdict import RULES, Facts, Finding, verdict

DAEMONS = ("train_supervisor", "stage_shard", "download_watchdog")
RECORD = {"run": "main", "state": "running"}
START = "`systemctl start stoker@p.target`, or `stoker run /p.yaml`"


def about(running: bool = True, silent_s: float = 0.0, **body: Any) -> dict[str, Any]:
    return {"running": running, "state": "", "silent_s": silent_s, "body": {"text": "", **body}}


def facts(record: dict[str, Any] | None = None, left: str = "", **changes: dict[str, Any]) -> Facts:
    """A pipeline that trains, but for the changes."""
    daemons = {daemon: about() for daemon in DAEMONS}
    return Facts("p", "/p.yaml", {**daemons, **changes}, {**RECORD, **(record or {})}, left)


@pytest.mark.parametrize(
    ("given", "grade", "text"),
    [
        (facts(left="in 3 to 4 days"), "well", "all is well, training is done in 3 to 4 days"),
        (facts(left="not known: why"), "well", "all is well, it trains; time left not known: why"),
        (facts({"state": "finished"}), "well", "all is well, run main is finished"),
        (
            facts({"state": "finished"}, **{daemon: about(False, exit_code=0) for daemon in DAEMONS}),
            "well",
            "all is well, run main is finished",
        ),
        (
            facts(train_supervisor=about(waiting_for="2 shard sets"), stage_shard=about(eta_s=840.0)),
            "waits",
            "training waits: 2 shard sets, about 14 min",
        ),
        (
            facts({"paused": {"by": "ann"}}),
            "waits",
            "training is paused by ann; `stoker resume /p.yaml` continues it",
        ),
        (facts(train_supervisor=about(next_launch_s=30)), "waits", "the next launch is in 30 s"),
        (
            facts(**{daemon: {**about(False), "body": {}} for daemon in DAEMONS}),
            "waits",
            f"nothing runs; start it with {START}",
        ),
        (facts(stage_shard=about(False, exit_code=0)), "waits", "the stage-shard loop does not run"),
        (
            facts(left="in 2 to 3 hours", stage_shard=about(quarantine={"files": {"parquet": 2}})),
            "needs a hand",
            "1 thing needs a hand; training is done in 2 to 3 hours",
        ),
        (
            facts(
                download_watchdog=about(files={"given_up": 1}, trouble="no answer"),
                train_supervisor=about(waiting_for="data"),
            ),
            "needs a hand",
            "2 things need a hand; training waits: data",
        ),
        (
            facts({"halted": {"reason": "3 launches", "remedy": "fix it"}}),
            "broken",
            "broken: the run is halted: 3 launches",
        ),
        (facts({"state": "failed", "reason": "why"}), "broken", "broken: the run failed: why"),
        (
            facts(stage_shard=about(False)),
            "broken",
            "broken: the stage-shard loop was killed and does not run",
        ),
        (
            facts(train_supervisor=about(False, exit_code=78)),
            "broken",
            "broken: the train supervisor ended with exit code 78",
        ),
        (
            facts(train_supervisor=about(silent_s=185.0)),
            "broken",
            "broken: the train supervisor has been silent for 3 min 5 s",
        ),
    ],
)
def test_the_worst_of_what_is_found_is_the_verdict(given: Facts, grade: str, text: str) -> None:
    judged = verdict(given)
    assert (judged.grade, judged.text) == (grade, text)
    assert bool(judged.hands) == (grade in ("needs a hand", "broken"))
    assert all(each.do and "FILE" not in each.do and "NAME" not in each.do for each in judged.hands)


def test_a_run_that_has_not_begun_waits_for_what_its_supervisor_does() -> None:
    daemons = {**facts().daemons, "train_supervisor": about(doing="waiting for 100 windows")}
    judged = verdict(Facts("p", "/p.yaml", daemons))
    assert (judged.grade, judged.text) == ("waits", "the run has not begun: waiting for 100 windows")


@pytest.mark.parametrize(
    ("daemon", "body", "event"),
    [
        ("download_watchdog", {"trouble": "x"}, "source_unavailable"),
        ("download_watchdog", {"files": {"given_up": 1}}, "download_given_up"),
        ("download_watchdog", {"files": {"rotten": 1}}, "source_rotten"),
        ("stage_shard", {"disks": {"hot": {"trouble": "x"}}}, "list_failed"),
        ("stage_shard", {"disks": {"warm": {"trouble": "x"}}}, "warm_unavailable"),
        ("stage_shard", {"is_paused": {"memory": True}}, "memory_paused"),
        ("stage_shard", {"is_paused": {"disk_state": True}}, "state_disk_full"),
        ("stage_shard", {"is_paused": {"disk_hot": True}}, "disk_full"),
        ("stage_shard", {"is_paused": {"disk_warm": True}}, "disk_full"),
        ("stage_shard", {"stuck": {"build a": 7}}, "worker_stuck"),
        ("stage_shard", {"quarantine": {"files": {"parquet": 1}}}, "source_quarantined"),
        ("train_supervisor", {"figures": {"fruitless": 2}}, "trainer_exited"),
        ("train_supervisor", {"watched": {"diverged": {}}}, None),
        ("train_supervisor", {"watched": {"diverged": {"loss": 1}}}, "loss_diverged"),
        ("train_supervisor", {"watched": {"plateau": {"loss": 1}}}, "loss_plateau"),
        ("train_supervisor", {"watched": {"slow": {"usual": 1}}}, "training_slow"),
        ("train_supervisor", {"unread": True}, "steps_unread"),
        ("train_supervisor", {"mirror": {"trouble": "x"}}, "mirror_failed"),
        ("train_supervisor", {"gpus": {"up": False}}, "gpu_sampler_failed"),
        ("train_supervisor", {"gpus": {"up": True, "present": {"0": 1, "1": 0}}}, "gpu_lost"),
        ("train_supervisor", {"trouble": "the checkpoint at step 5 failed: full"}, "checkpoint_failed"),
        ("train_supervisor", {"trouble": "the newest save is not sealed: x"}, "checkpoint_refused"),
        ("train_supervisor", {"figures": {"fruitless": 1}, "gpus": {"up": None}}, None),
        ("stage_shard", {"uptime_s": 5.0, "disks": {"hot": {"trouble": "it has not answered yet"}}}, None),
    ],
)
def test_what_needs_a_hand_has_the_words_of_its_event(
    daemon: str, body: dict[str, Any], event: str | None
) -> None:
    hands = verdict(facts(**{daemon: about(**body)})).hands
    assert [hand.event for hand in hands] == ([event] if event else [])
    assert all(hand.do[:8] == (event_type(hand.event) or Finding).do[:8] for hand in hands)
    stopped = verdict(facts(**{daemon: about(False, exit_code=0, **body)}))
    assert not stopped.hands, "what a daemon that was stopped said is out of date"


def test_every_rule_bears_a_snapshot_of_another_version() -> None:
    for body in (
        {},
        {"files": None, "disks": [], "quarantine": "x", "gpus": None, "watched": None},
        {"files": {"given_up": "two"}, "stuck": 5, "figures": {"fruitless": "x"}, "gpus": {"present": 1}},
    ):
        given = facts(**{daemon: about(**body) for daemon in DAEMONS})
        assert not [each for rule in RULES for each in rule(given)]
