"""`stoker evaluate` as a process of its own: no network, nothing of it left, no word of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.config.load import examples_dir
from stoker.evaluation.command import find_suite
from stoker.store.errors import UsageError
from stoker.training.model.transformer import Model
from support.model_checkpoints import checkpoint_of

SUITES = {"heldout": 62, "standard": 48, "english-talk": 32, "generation-smoke": 8}
ALL = [suite if suite == "heldout" else pytest.param(suite, marks=pytest.mark.long) for suite in SUITES]


def scaled(factor: float) -> Callable[[Model], object]:
    return lambda model: [parameter.data.mul_(factor) for parameter in model.parameters()]


@pytest.mark.root
@pytest.mark.parametrize("suite", ALL)
def test_a_shipped_suite_runs_without_a_network_and_leaves_nothing(suite: str, tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    # Its averaged weights are the baseline's raw ones, bit for bit.
    checkpoint, _ = checkpoint_of(tmp_path / "run", change=scaled(2.0), ema=scaled(0.5))
    baseline, _ = checkpoint_of(tmp_path / "baseline")
    for name in ("home", "scratch"):
        (tmp_path / name).mkdir()
    environ = {**os.environ, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "scratch")}
    command = [
        sys.executable,
        "-m",
        "stoker.cli.main",
        "evaluate",
        str(checkpoint),
        "--weights=ema",
        "--suite",
        suite,
        "--json",
    ]
    command += ["--samples", str(tmp_path / "samples")] + ["--baseline", str(baseline)] * (suite == "heldout")
    done = subprocess.run(
        ["unshare", "--net", *command], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)["evaluated"]
    metrics = lines[-1]["metrics"]
    assert lines[-1]["of"] == "step 7 (ema)"
    assert next(iter(metrics.values()))["n"] == SUITES[suite] and lines[-1]["invalid"] is None
    if suite == "heldout":
        assert len(lines) == 2 and lines[0]["metrics"] == metrics
        verdict = lines[-1]["against"]["verdicts"]["heldout/bits_per_byte"]
        assert (verdict["verdict"], verdict["difference"]) == ("doubt", 0.0)
        assert "evaluate: " in done.stderr
    else:
        assert lines[-1]["gate"]["of"] == SUITES[suite]
    words = (str(tmp_path), socket.gethostname(), str(examples_dir()))
    assert not any(word in done.stdout for word in words), "only numbers and hashes"
    assert not [*(tmp_path / "home").iterdir()] and not [*(tmp_path / "scratch").iterdir()]
    assert {file.name for file in (tmp_path / "samples").iterdir()} == {line["samples"] for line in lines}


def test_a_suite_is_found_by_its_name_or_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_suite("heldout") == examples_dir() / "suites/heldout.yaml"
    (tmp_path / "own.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert find_suite("own.yaml") == tmp_path / "own.yaml"
    with pytest.raises(UsageError, match="no suite 'heldut'; did you mean 'heldout'"):
        find_suite("heldut")
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "lm_eval" else find(name))
    assert exit_code(["evaluate", str(tmp_path), "--suite", "heldout"]) == 69
    assert "`pip install 'stoker[eval]'` installs it" in capsys.readouterr().err


def test_tasks_with_functions_and_with_data_that_datasets_has_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from datasets import load_dataset

    checkpoint, _ = checkpoint_of(tmp_path / "run")
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "the fox", "answer": 0}\n{"text": "a disk", "answer": 1}\n'
    )
    load_dataset("json", data_files={"test": str(tmp_path / "rows.jsonl")}, cache_dir=str(tmp_path / "made"))
    (made,) = (tmp_path / "made" / "json").iterdir()
    (tmp_path / "cache").mkdir()
    cached = shutil.copytree(made, tmp_path / "cache" / "own___rows" / "default")
    for file in cached.rglob("json-*.arrow"):
        file.rename(file.with_name(file.name.replace("json", "rows")))
    before = sorted(cached.rglob("*"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "utils.py").write_text("def loud(rows):\n    return rows.map(lambda row: row)\n")
    (tmp_path / "mine" / "mine.yaml").write_text(
        "task: mine\ndataset_path: own/rows\ntest_split: test\nprocess_docs: !function utils.loud\n"
        "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_target: answer\n"
        "doc_to_choice: [red, blue]\nmetric_list: [{metric: acc}, {metric: f1}, {metric: brier_score}]\n"
    )
    (tmp_path / "own.yaml").write_text("tasks: [mine]\ninclude: mine\n")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    code = exit_code(["evaluate", str(checkpoint), "--suite", str(tmp_path / "own.yaml"), "--json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert list(json.loads(told.out)["evaluated"][0]["metrics"]) == ["mine/acc"]
    assert sorted(cached.rglob("*")) == before
