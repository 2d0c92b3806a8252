"""The manual works as typed: each `stoker ...` of README, docs and register, over a real pipeline."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from support.manual import ROOT, commands, filled
from support.training import TrainPipeline, make_training

# What has no end, needs torch, other files or a file in /etc/stoker, and who types it.
ELSEWHERE = {
    "init": "integration/test_init.py",
    "run": "integration/test_stoker_run.py",
    "watch": "integration/test_cli_watch.py",
    "download": "integration/test_cli_download.py",
    "rehearse": "integration/test_rehearse.py",
    "replay": "integration/test_replay.py",
    "generate": "integration/test_stoker_run.py",
    "export": "integration/test_export_import.py",
    "export-model": "unit/test_training_model_export.py",
    "import": "integration/test_export_import.py",
    "publish": "integration/test_publish.py",
    "fetch-model": "integration/test_publish.py",
    "memory": "integration/test_memory_record.py",
    "top": "integration/test_top.py",
    "units": "unit/test_cli_units.py",
    "bundle": "unit/test_release_bundle.py",
    "evaluate": "integration/test_evaluation.py",
}
NOT_HERE = re.compile(
    rf"stoker (?:data |checkpoint )?({'|'.join(ELSEWHERE)})(?![\w-])"
    r"|stoker verify downloads FILE --accept"  # of a file that was found rotten
    r"|stoker verify model"  # of a bundle
)
ALONE = ("stoker version", "stoker client > stoker_client.py")
PYTHON = re.compile(r"\bNone\b|\bb'|\bTraceback\b")  # for nobody to read
USAGE, BUG, CONFIGURATION = 64, 70, 78


def test_each_command_that_is_not_typed_here_is_typed_by_a_test_of_its_own() -> None:
    for command, file in ELSEWHERE.items():
        text = (ROOT / "tests" / file).read_text()
        assert re.search(rf'"{command}"|invoke\({command.replace("-", "_")}\b', text), f"{file}: {command}"


def test_each_unit_that_the_manual_names_is_shipped() -> None:
    """Those that show something are typed in the throw-away systemd."""
    shipped = [file.name for file in (ROOT / "deploy" / "systemd").glob("*@.*")]
    named = [
        (command, word)
        for command in commands()
        if not command.startswith("stoker ")
        for word in re.findall(r"stoker[\w*-]*@[\w.*]*", command)
    ]
    assert len(named) > 20
    for command, word in named:
        unit = re.sub(r"@(NAME|fineweb)", "@", word)
        unit = unit if "*" in unit or "." in unit else f"{unit}.service"
        assert fnmatch.filter(shipped, unit), f"`{command}` names no unit"


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
        "THING": "0.parquet",
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
