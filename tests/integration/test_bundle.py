"""A bundle of a real run, by the real command: proven by transformers, whole or absent whatever kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import strace
from stoker.cli.main import exit_code
from stoker.store.checksums import prove_checksums
from support.model_checkpoints import checkpoint_of
from support.stoker_command import StokerCommand
from support.training import TrainPipeline
from support.waiting import wait_until

UNPROVEN = "import sys; sys.modules['transformers'] = None; from stoker.cli.main import main; main()"


def files_of(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_a_run_becomes_a_proven_bundle_with_its_account(
    finished_with_torch: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed while it is proven, with the worker that proves it; then made by the same command."""
    run, out = finished_with_torch, tmp_path / "out"
    words = ("bundle", str(run.data.file), str(out), "--dtype", "bfloat16")
    command = StokerCommand(tmp_path / "said", *words)
    try:
        proving = wait_until(lambda: [each for each in command.everyone() if each.pid != command.process.pid])
        command.process.send_signal(signal.SIGKILL)
        command.process.wait()
        wait_until(lambda: not command.everyone(), what="the end of the worker")
    finally:
        command.end()
    assert proving and not out.exists()
    assert exit_code(words) == 0, capsys.readouterr().err
    assert prove_checksums(out)[1] == "" and [*tmp_path.glob(".tmp-*")] == []

    told, identity = json.loads((out / "release.json").read_bytes()), run.record()
    assert told["proven"] and told["versions"].keys() > {"torch", "transformers"}
    assert {name: told[name] for name in ("run_id", "build_id", "seed", "dataset", "tokenizer_sha256")} == {
        name: identity[name] for name in ("run_id", "build_id", "seed", "dataset", "tokenizer_sha256")
    }
    assert exit_code(["audit", str(run.data.file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out.partition("\n")[2])["plan"]
    assert (told["windows_applied"], told["windows_skipped"]) == (plan["applied"], plan["skipped"])
    evaluated = [row for row in run.rows() if "val_loss" in row][-1]
    assert (told["heldout_loss"], told["heldout_stderr"]) == (evaluated["val_loss"], evaluated["val_stderr"])
    card = (out / "README.md").read_text()
    assert f"| windows applied | {plan['applied']:,} |" in card and "transformers gave the logits" in card


@pytest.mark.strace
@pytest.mark.skipif(not strace.is_here(), reason="no strace here")
def test_whatever_call_kills_it_the_bundle_is_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command each time, in the same place; the last one is left in peace and ends it."""
    for step in (7, 8):
        checkpoint_of(tmp_path / "run" / "checkpoints", step=step)
    out, link = tmp_path / "out", tmp_path / "current"
    words = ["bundle", str(tmp_path / "run"), str(out), "--last", "2", "--current", str(link)]
    command = [sys.executable, "-c", UNPROVEN, *words]
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert exit_code([*words[:2], str(tmp_path / "whole"), *words[3:5]]) == 0
    wanted = files_of(tmp_path / "whole")
    seen = set()
    for call, when in (("write", 3), ("rename", 4), ("fsync", 5), ("rename", 8), ("rename", 9)):
        log = tmp_path / "log"
        killed = subprocess.run(strace.killing(command, call, when, log), check=False, capture_output=True)
        assert killed.returncode in (-signal.SIGKILL, 137), log.read_text()
        seen.add(out.exists())
        assert not os.path.lexists(link) and (not out.exists() or files_of(out) == wanted), (call, when)
    assert seen == {True, False}, "the last blow was between the bundle's name and the link"
    assert exit_code(words) == 0
    assert files_of(link) == wanted and [*tmp_path.glob(".tmp-*")] == []
