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

CHANGE, HALVED, END = 10, 15, 20


def test_another_card_and_half_a_micro_batch_are_recorded_where_they_begin_and_a_replay_comes_up_to_there(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("STOKER_TEST_HALVES_AFTER", str(HALVED))
    for steps, card in ((CHANGE, "A"), (END, "B")):
        monkeypatch.setenv("STOKER_TEST_CARD", card)
        run = make_training(shard_sets if steps == CHANGE else home, home, train__steps=steps)
        ended = run.once()
        assert ended.returncode == 0, ended.stderr
    assert [(event["step"], event["message"], event["level"]) for event in run.events("bits_end_here")] == [
        (CHANGE, "card: A -> B", "info"),
        (HALVED, "micro_batch: 4 -> 2", "info"),
    ]
    (event,) = run.events("micro_batch_lowered")
    assert (event["step"], event["before"], event["micro_batch"]) == (HALVED, 4, 2)
    lines, damage = read_launches(run.run.launches)
    # A new run has none before its trainer tells them, and a resumed one its checkpoint's.
    numerics = [one.settings["numerics"] or {} for one in lines]
    steps = [one.resume_step for one in lines]
    told = [(has.get("card"), has.get("micro_batch")) for has in numerics]
    assert steps == [0, 0, CHANGE, CHANGE, HALVED]
    assert told == [(None, None), ("A", 4), ("A", 4), ("B", 4), ("B", 2)]
    assert len({one.launch for one in lines}) == 2 and not damage
    now = read_record(run.run.launch)["numerics"]
    newest = run.run.checkpoints / run.checkpoints()[-1]
    assert now == numerics[-1] == json.loads((newest / "trainer.json").read_bytes())["numerics"]
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
