"""What a launch starts: the built-in trainer, one with all of its protocol, or one of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.config.schema import Pipeline
from stoker.store.layout import RunLayout
from stoker.supervise.external.program import Program
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.trainer_kind import kind_of
from support.config_files import MINIMAL, load_text

DAEMON = {"PATH": "/bin", "WATCHDOG_USEC": "1", "PYTHONSAFEPATH": "1"}
OWN = "name: mine\nstate: state\ntrain:\n  command: [python, train.py]\n"
FULL = MINIMAL + "  command: [python, train.py]\n  external: {protocol: full}\n"


def started(pipeline: Pipeline, resume_step: int = 0, **how: Any) -> Program:
    resume = Path(f"/run/checkpoints/step-{resume_step}") if resume_step else None
    launch = Launch("launch-1", 0, resume, resume_step, Path("/run/socket"))
    return kind_of(pipeline).program(pipeline, launch, RunLayout(Path("/run")), DAEMON, **how)


def test_the_built_in_trainer_gets_plan_and_timelines_and_no_directory(tmp_path: Path) -> None:
    it = started(load_text(tmp_path, MINIMAL))
    assert it.command == (sys.executable, "-m", "stoker.training.trainer")
    assert it.directory is None
    assert it.environ["PYTHONSAFEPATH"] == "1" and it.environ["STOKER_PLAN"] == "/run/plan.jsonl"


def test_with_the_whole_protocol_only_the_command_is_another(tmp_path: Path) -> None:
    it, built_in = started(load_text(tmp_path, FULL), 7), started(load_text(tmp_path, MINIMAL), 7)
    assert it.command == ("python", "train.py")
    of_built_in = {"PYTHONSAFEPATH", "STOKER_RANK"}  # its own imports, and its one rank
    assert it.environ == {name: value for name, value in built_in.environ.items() if name not in of_built_in}
    assert it.directory == tmp_path


def test_a_trainer_of_the_users_own_gets_its_own_path_of_the_checkpoint(tmp_path: Path) -> None:
    text = OWN + '  external: {directory: work, resume: ["--from={path}", "{step}", "{path}/{step}"]}\n'
    it = started(
        load_text(tmp_path, text),
        7,
        resumes_from={"step": 7, "external": {"path": "out/{step}.pt"}},
        micro_batch=4,
    )
    path = str(tmp_path / "work/out/{step}.pt")
    assert it.command == ("python", "train.py", f"--from={path}", "7", f"{path}/7")
    assert it.directory == tmp_path / "work"
    ours = {name: value for name, value in it.environ.items() if name.startswith(("STOKER_R", "STOKER_M"))}
    assert ours == {
        "STOKER_RUN_DIR": "/run",
        "STOKER_RESUME_FROM": path,
        "STOKER_RESUME_STEP": "7",
        "STOKER_MICRO_BATCH": "4",
    }
    assert it.environ["STOKER_PIPELINE"] == "mine"
    assert not {"PYTHONSAFEPATH", "STOKER_PLAN", "STOKER_TIMELINES", "STOKER_SHARDS"} & set(it.environ)


def test_a_step_that_nobody_knows_is_never_the_number_of_the_sealed_directory(tmp_path: Path) -> None:
    it = started(
        load_text(tmp_path, OWN + '  external: {resume: ["{step}"]}\n'),
        7,
        resumes_from={"step": 7, "external": {"path": "out/last.pt", "step": None}},
    )
    assert it.command == ("python", "train.py", "unknown")
    assert it.environ["STOKER_RESUME_FROM"] == str(tmp_path / "out/last.pt")
    assert it.environ["STOKER_RESUME_STEP"] == ""


def test_at_the_beginning_it_gets_no_words_and_with_a_dataset_its_shards(tmp_path: Path) -> None:
    text = MINIMAL.replace(
        "  steps: 10\n  model: tiny\n", '  command: [x]\n  external: {resume: ["{path}"]}\n'
    )
    it = started(load_text(tmp_path, text))
    assert it.command == ("x",)
    assert it.environ["STOKER_RESUME_FROM"] == it.environ["STOKER_RESUME_STEP"] == ""
    assert it.environ["STOKER_SHARDS"] == str(tmp_path / "hot/shards/prose")


@pytest.mark.parametrize("external", [{}, {"external": None}])
def test_a_checkpoint_without_a_path_of_its_own_is_none_to_resume_from(tmp_path: Path, external: Any) -> None:
    assert started(load_text(tmp_path, OWN), 7, resumes_from=external).environ["STOKER_RESUME_FROM"] == ""
