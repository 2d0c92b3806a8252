"""What the shell is offered of a pipeline's names, by the FILE that stands before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from stoker.cli.main import COMPLETE, cli
from support.config_files import MINIMAL, write_pipeline
from support.waiting import LONG_S

IDS = ["parquet-a", "shards-b"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pipeline with two runs, checkpoints and a quarantine."""
    home = tmp_path_factory.mktemp("completed")
    runs = home / "state" / "runs"
    for name in (
        "main/checkpoints/step-000000020",
        "main/checkpoints/step-000000100",
        "old/checkpoints/step-000000007",
    ):
        (runs / name).mkdir(parents=True)
    (runs / "main/checkpoints/.tmp-1").mkdir()
    (runs / "main/checkpoints/step-000000300").touch()  # no checkpoint
    for name in IDS:
        (home / "state" / "quarantine" / name).mkdir(parents=True)
    return str(write_pipeline(home, MINIMAL))


@pytest.mark.parametrize(
    ("words", "begun", "offered"),
    [
        ("rollback FILE", "", ["100", "20"]),
        ("rollback FILE", "1", ["100"]),
        ("describe FILE", "", ["100", "20", *IDS]),
        ("quarantine show FILE", "", IDS),
        ("quarantine release FILE parquet-a", "s", ["shards-b"]),
        ("quarantine drop FILE", "x", []),
        ("runs FILE --run", "", ["main", "old"]),
        ("checkpoint list FILE --run", "o", ["old"]),
        ("data plan FILE --run", "", ["main", "old"]),
        ("data batch FILE", "", ["main", "old"]),
        ("data batch FILE old", "", ["7"]),
        ("replay FILE", "m", ["main"]),
        ("runs --run", "", []),
        ("rollback nowhere.yaml", "", []),
        ("runs nowhere.yaml --run", "", []),
        (f"describe {__file__}", "", []),
    ],
)
def test_names_are_offered_and_nothing_where_there_are_none(
    file: str, words: str, begun: str, offered: list[str]
) -> None:
    asked = [file if word == "FILE" else word for word in words.split()]
    found = BashComplete(cli, {}, "stoker", COMPLETE).get_completions(asked, begun)
    assert [one.value for one in found] == offered


def test_a_pipeline_without_a_state_has_no_names(tmp_path: Path) -> None:
    asked = ["rollback", str(write_pipeline(tmp_path, MINIMAL))]
    assert not BashComplete(cli, {}, "stoker", COMPLETE).get_completions(asked, "")


def test_the_shell_is_answered_without_a_heavy_import(file: str) -> None:
    program = (
        "import sys\nfrom stoker.cli.main import main\ntry: main()\n"
        "finally: print(sorted({'torch', 'numpy', 'pyarrow', 'jinja2'} & set(sys.modules)))"
    )
    asked = {COMPLETE: "bash_complete", "COMP_WORDS": f"stoker rollback {file} 1", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
        timeout=LONG_S,
    )
    assert (done.stdout, done.stderr) == ("plain,100\n[]\n", "")
