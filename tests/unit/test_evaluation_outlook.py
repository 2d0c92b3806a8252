"""`stoker config check` of suites: what is wrong with them, and how small a difference each can show."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.config.load import examples_dir
from stoker.store.log import ChainedLog
from support.config_files import MINIMAL, load_text

SUITES = """stage: {free_floor: 0}
plan: {segment_tokens: 1K}
evaluations: [{suite: heldout, at: [finish]}, {suite: standard}, {suite: own/mmlu.yaml}]
promote: {primary: heldout/bits_per_byte, guards: {standard/passed: 0.12}}
"""
START = "  start_when: {tokens: 1K}\n"


def check(
    directory: Path, capsys: pytest.CaptureFixture[str], old: str = "", new: str = ""
) -> tuple[int, str]:
    (directory / "own").mkdir(exist_ok=True)
    (directory / "own/mmlu.yaml").write_text("tasks: [mmlu]\n")
    (directory / "mine.yaml").write_text(MINIMAL + START + SUITES.replace(old, new))
    code = exit_code(["config", "check", str(directory / "mine.yaml")])
    return code, "".join(capsys.readouterr())


def test_each_suite_shows_differences_from_its_number_of_cases_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = check(tmp_path, capsys)
    assert code == 0
    assert "\nstandard/passed: 48 documents show a difference from 0.125 on\n" in told
    assert "warning: promote.guards.standard/passed: 0.12 is below 0.125, the smallest" in told
    assert "heldout" not in told.replace("ok: ", ""), "how much its texts differ is not known yet"
    assert "below 0.1" not in check(tmp_path, capsys, "passed: 0.12", "passed: 0.13")[1]


def test_a_recorded_comparison_tells_how_much_texts_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load_text(tmp_path, MINIMAL).layout.run("main")
    run.root.mkdir(parents=True)
    shown = {"verdict": "doubt", "difference": 0.0, "low": -0.0196, "high": 0.0196, "n": 62}
    metrics = {"heldout/bits_per_byte": shown, "standard/passed": shown | {"low": 0.0, "high": 0.0}}
    line = {
        "v": 1,
        "step": 1,
        "timeline": 0,
        "checkpoint_digest": "c",
        "suite": "heldout",
        "suite_digest": "d",
    }
    with closing(ChainedLog(run.evaluations_log)) as log:
        log.append({**line, "metrics": {}, "against": {"digest": "b", "verdicts": metrics}})
    told = check(tmp_path, capsys)[1]
    assert "heldout/bits_per_byte: 62 documents show a difference from 0.028 on" in told
    assert "standard/passed: 48 documents show a difference from 0.125 on" in told
    guards = "guards: {heldout/bits_per_byte: 0.02, "
    assert (
        "promote.guards.heldout/bits_per_byte: 0.02 is below 0.028"
        in check(tmp_path, capsys, "guards: {", guards)[1]
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "standard/passed",
            "standard/pased",
            "promote: standard/pased is measured by none of evaluations; did you",
        ),
        ("standard/passed", "arc/acc", "they measure heldout/bits_per_byte, standard/passed, mmlu"),
        ("standard/passed", "mmlu_anatomy/acc", ""),
        ("own/mmlu", "own/gone", "own/gone.yaml: cannot be read: No such file or directory; check the path"),
        (
            "suite: heldout",
            "suite: heldot",
            "evaluations[0].suite: there is no suite named 'heldot'; did you mean",
        ),
    ],
)
def test_a_suite_or_a_metric_that_there_is_not_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    code, text = check(tmp_path, capsys, old, new)
    assert told in text
    assert code == (78 if told else 0)


def test_without_lm_eval_the_command_that_installs_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    code, told = check(tmp_path, capsys)
    assert code == 78
    assert "evaluations: need lm_eval, which is not installed; `pip install 'stoker[eval]'`" in told


def test_a_suite_is_a_shipped_one_by_its_name_or_a_file_beside_the_pipeline(tmp_path: Path) -> None:
    found = load_text(tmp_path, MINIMAL + SUITES).evaluations
    assert [one.suite for one in found[::2]] == [
        examples_dir() / "suites" / "heldout.yaml",
        tmp_path / "own" / "mmlu.yaml",
    ]
    assert [one.name for one in found] == ["heldout", "standard", "mmlu"]
