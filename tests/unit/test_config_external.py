"""A pipeline file whose trainer is the user's own: what it may leave out, and what means nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.config.checks import notes
from stoker.config.show import effective_yaml
from support.config_files import MINIMAL, load_text, problems_of, write_pipeline

OWN = "name: mine\nstate: state\ntrain:\n  command: [python, train.py]\n"
WITH_DATA = MINIMAL.replace("  steps: 10\n  model: tiny\n", "  command: [python, train.py]\n")


def commanded(written: str) -> str:
    return OWN.replace("[python, train.py]", written)


def test_a_trainer_of_the_users_own_needs_no_data_no_model_and_no_steps(tmp_path: Path) -> None:
    pipeline = load_text(tmp_path, OWN)
    assert not pipeline.has_data and not pipeline.train.follows_plan
    assert pipeline.train.command == ("python", "train.py")
    shown = effective_yaml(pipeline)
    assert load_text(tmp_path, shown).model_dump() == pipeline.model_dump()
    assert not {"hot", "dataset", "tokenizer", "plan"} & {
        line.partition(":")[0] for line in shown.splitlines()
    }
    assert "\n  model:" not in shown and "\n  seq_len:" not in shown
    with_data = load_text(tmp_path, WITH_DATA)
    assert with_data.has_data
    assert load_text(tmp_path, effective_yaml(with_data)).model_dump() == with_data.model_dump()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            "[python, train.py, --lr, 3e-4, --fast, yes]",
            ("python", "train.py", "--lr", "3e-4", "--fast", "yes"),
        ),
        ("python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
    ],
)
def test_the_words_of_a_command_are_those_that_were_written(
    tmp_path: Path, written: str, words: tuple[str, ...]
) -> None:
    assert load_text(tmp_path, commanded(written)).train.command == words


def test_words_that_may_hold_a_secret_are_not_shown(tmp_path: Path) -> None:
    words = "[python, train.py, --hub-token, abc, --api-key=def, --data=https://me:ghi@host/x, --tokens, '5']"
    shown = effective_yaml(load_text(tmp_path, commanded(words)))
    assert not [secret for secret in ("abc", "def", "ghi") if secret in shown]
    assert "--api-key=****" in shown and "--tokens, '5'" in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (OWN + "  seq_len: 8\n", "mine.yaml:5: train.seq_len: is a setting of the built-in trainer"),
        (OWN + "evaluations: [{suite: a.yaml, at: [finish]}]\n", "mine.yaml:5: evaluations: an external"),
        (OWN + "  model: tiny\n", "mine.yaml:5: train.model: is a setting of the built-in trainer"),
        (OWN + "  checkpoint: {every: 1h}\n", "mine.yaml:5: train.checkpoint.every: is a setting of the"),
        (OWN + "hot: hot\n", "mine.yaml:5: hot: is about a dataset, and none is named; remove it"),
        (OWN + "plan: {epochs: 2}\n", "mine.yaml:5: plan: is about a dataset"),
        (commanded("[]"), "mine.yaml:4: train.command: is empty"),
        (commanded("cd x && train"), "mine.yaml:4: train.command: '&&' is for a shell"),
        (commanded("train 'a"), "mine.yaml:4: train.command: \"train 'a\" has a quote"),
        (OWN + "  external: {resume: ['{file}']}\n", "mine.yaml:5: train.external.resume: {file} is unknown"),
        (MINIMAL + "  external: {step: auto}\n", "mine.yaml:10: train.external: is about an external"),
        (MINIMAL + "  command: [x]\n  external: {protocol: full, step: auto}\n",
         "mine.yaml:11: train.external.step: means nothing for protocol: full"),
        (OWN + "  external: {protocol: full}\n  steps: 2\n", "mine.yaml:1: dataset: is required; add it"),
        (OWN + "supervise: {on_spike: rollback}\n", "mine.yaml:5: supervise.on_spike: rollback skips"),
        (WITH_DATA + "warm: warm\n", "mine.yaml:1: evict.target_free: must be 0"),
    ],
)  # fmt: skip
def test_what_means_nothing_with_a_trainer_of_the_users_own_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    problems = problems_of(tmp_path, text)
    assert any(one.startswith(problem) for one in problems), problems


def test_a_trainer_that_may_leave_no_checkpoint_is_noted(tmp_path: Path) -> None:
    assert [note.path for note in notes(load_text(tmp_path, OWN))] == [("train", "external")]
    assert not notes(load_text(tmp_path, OWN + "  external: {checkpoints: '*.pt'}\n"))


@pytest.mark.parametrize(
    ("command", "external", "said"),
    [
        ("[nosuch-program]", "{}", "train.command: 'nosuch-program' is no program in PATH"),
        ("[./train.sh]", "{}", "train.command: './train.sh' is no program in "),
        ("[sh]", "{directory: gone}", "gone does not exist; make it, or name another"),
    ],
)
def test_config_check_looks_for_the_program_and_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, external: str, said: str
) -> None:
    text = commanded(f"{command}\n  external: {external}")
    (tmp_path / "train.sh").touch()  # not executable
    assert exit_code(["config", "check", str(write_pipeline(tmp_path, text))]) == 78
    assert said in capsys.readouterr().err
    good = write_pipeline(tmp_path, commanded("[sh, train.sh]"))
    assert exit_code(["config", "check", str(good)]) == 0
    assert "ok: pipeline mine: run main by sh in " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("replay",), "does not read Stoker's plan: `stoker replay` has"),
        (
            ("data plan",),
            "does not read Stoker's plan: `stoker data plan` has",
        ),
        (("data batch", "1"), "does not read Stoker's plan: `stoker data batch` has"),
        (("data where", "a.parquet", "1"), "does not read Stoker's plan: `stoker data where` has"),
        (("data skip-set", "0" * 16), "does not read Stoker's plan: `stoker data skip-set` has"),
        (("rollback", "1", "--skip", "1:2"), "--skip: an external trainer does not read Stoker's plan"),
        (
            ("data rows",),
            "it prepares no dataset, so `stoker data rows` has nothing to do",
        ),
        (
            ("data download",),
            "it prepares no dataset, so `stoker data download` has nothing to do",
        ),
    ],
)
def test_commands_about_plan_and_data_say_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], said: str
) -> None:
    file = write_pipeline(tmp_path, OWN)
    assert exit_code([*command[0].split(), str(file), *command[1:]]) == 64
    assert said in capsys.readouterr().err
