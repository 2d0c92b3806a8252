"""The manual works as typed: each `stoker ...` of README, docs and register, over a real pipeline."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from support.manual import commands, filled
from support.training import TrainPipeline, make_training

# What begins work, asks running daemons, needs torch or a file in /etc/stoker is typed by tests of its own.
NOT_HERE = re.compile(
    r"stoker (run|train|replay|generate|export|export-model|watch|import|memory|reload|download|units)\b"
    r"|stoker verify downloads FILE --accept"  # of a file that was found rotten
)
ALONE = ("stoker version", "stoker client > stoker_client.py")
PYTHON = re.compile(r"\bNone\b|\bb'|\bTraceback\b")  # for nobody to read
USAGE, BUG, CONFIGURATION = 64, 70, 78


def typed() -> list[tuple[str, str]]:
    """Each command and its page, but for those that are rows of a table (a|b), or words of a sentence."""
    found = [
        (command, page)
        for command, page in commands().items()
        if command.startswith("stoker ") and "|" not in re.sub(r"\[.*?\]", "", command)
    ]
    return [
        (command, page)
        for command, page in found
        if (re.search(r" (?!-)[^a-z]", command) or command in ALONE) and not NOT_HERE.match(command)
    ]


def test_every_stoker_command_of_the_manual_answers(
    finished: TrainPipeline,
    shard_sets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(shard_sets / "source", tmp_path / "source")
    run = make_training(finished.data.home, tmp_path)
    (run.data.source / "bad.parquet").write_bytes(b"PK\3\4, no parquet at all")
    run.data.drain()
    (bad,) = run.data.pipeline.layout.quarantine.iterdir()
    values = {
        "FILE": str(run.data.file),
        "RUN": "main",
        "STEP": "20",
        "FROM:TO": "21:22",
        "SOURCE:ROW": "0.parquet:0",
        "ID": bad.name,
        "KEY": next(iter(run.data.sets())),
        "PATH": "0.parquet",
        "checkpoint PATHS": f"checkpoint {run.run.checkpoints}",
        "parquet PATHS": f"parquet {run.data.source / '0.parquet'}",
        "shards PATHS": f"shards {tmp_path / 'hot' / 'shards'}",
        "N": "5",
        "OUT": "rows.parquet",
        "COMMAND": "status",
        "<the file in your folder>": str(run.data.source / "0.parquet"),
        "<warm>/shards": str(tmp_path / "hot" / "shards"),
    }
    monkeypatch.chdir(tmp_path)
    wrong = []
    assert len(typed()) > 30
    for command, page in typed():
        code = exit_code(shlex.split(filled(command, values).split(" > ")[0])[1:])
        said = "".join(capfd.readouterr())
        if (
            code in (USAGE, BUG, CONFIGURATION)
            or not said.strip()
            or (">" not in command and PYTHON.search(said))
        ):
            wrong.append(f"{page}: `{command}` ends with {code}: {said}")
    assert not wrong, "\n".join(wrong)
