"""A run that goes on with other numerics: what is recorded of it, and how far a replay can go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.store.record import read_record
from stoker.supervise.audit.audit import audit_run
from stoker.supervise.run.launch_record import read_launches
from support.training import make_training

CHANGE, END = 20, 30


def test_another_card_is_recorded_where_it_begins_and_a_replay_comes_up_to_there(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    for steps, card in ((CHANGE, "A"), (END, "B")):
        monkeypatch.setenv("STOKER_TEST_CARD", card)
        run = make_training(shard_sets if steps == CHANGE else home, home, train__steps=steps)
        ended = run.once()
        assert ended.returncode == 0, ended.stderr
    (event,) = run.events("bits_end_here")
    assert (event["step"], event["message"], event["level"]) == (CHANGE, "card: A -> B", "info")
    lines, damage = read_launches(run.run.launches)
    # A new run has none before its trainer tells them, and a resumed one its checkpoint's.
    cards = [(one.settings["numerics"] or {}).get("card") for one in lines]
    assert ([one.resume_step for one in lines], cards) == ([0, 0, CHANGE, CHANGE], [None, "A", "A", "B"])
    assert [one.launch for one in lines[::2]] == [one.launch for one in lines[1::2]] and not damage
    now = read_record(run.run.launch)["numerics"]
    newest = run.run.checkpoints / run.checkpoints()[-1]
    assert (
        now
        == lines[-1].settings["numerics"]
        == json.loads((newest / "trainer.json").read_bytes())["numerics"]
    )
    assert audit_run(run.data.pipeline).findings == ()

    def replay(*options: str) -> tuple[int, str]:
        code = exit_code(["replay", str(run.data.file), "main", str(tmp_path / "out"), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    with run.trainer():
        code, said = replay()
        assert (code, f"(card: A -> B); replay it up to there: --to {CHANGE}" in said) == (78, True), said
        code, said = replay("--to", str(CHANGE))  # on B
        assert (code, "this machine cannot give the bits" in said) == (78, True), said
        monkeypatch.setenv("STOKER_TEST_CARD", "A")
        code, said = replay()
        assert (code, f"identical: {CHANGE} steps" in said) == (0, True), said


def test_a_halved_micro_batch_is_told_and_the_next_launch_begins_with_it(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_HALVES_AFTER", "5")
    run = make_training(shard_sets, tmp_path, train__steps=10)
    assert run.once().returncode == 0
    (event,) = run.events("micro_batch_lowered")
    assert (event["step"], event["before"], event["micro_batch"]) == (5, 4, 2)
    assert [event["message"] for event in run.events("bits_end_here")] == ["micro_batch: 4 -> 2"]

    run = make_training(tmp_path, tmp_path, train__steps=20)
    assert run.once().returncode == 0
    launches, _ = read_launches(run.run.launches)
    assert [one.settings["numerics"]["micro_batch"] for one in launches[-2:]] == [2, 2]
    assert len(run.events("micro_batch_lowered")) == 1
