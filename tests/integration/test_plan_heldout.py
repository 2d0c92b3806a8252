"""The held-out worker as the supervisor runs it: a process of its own, over real files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from support.plan_data import write_set


def run(task: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.plan.heldout_worker"],
        input=json.dumps(task).encode() + b"\n",
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1])


def task_for(root: Path, sets: list[tuple[str, str]], tokens: int) -> dict[str, Any]:
    return {
        "shards_root": str(root),
        "sets": sets,
        "seq_len": 4,
        "vocab_size": 1000,
        "tokens": tokens,
        "target": str(root / "heldout.bin"),
    }


def test_held_out_windows_are_spread_over_the_val_streams_and_always_the_same(tmp_path: Path) -> None:
    sets = [
        write_set(tmp_path, "a", [range(9)], val=[range(21)]),
        write_set(tmp_path, "b", [], val=[range(21, 41)]),
    ]

    first = run(task_for(tmp_path, sets, 20))["result"]
    data = (tmp_path / "heldout.bin").read_bytes()
    again = run(task_for(tmp_path, sets, 20))["result"]

    assert first == again
    assert first == {
        "sha256": hashlib.sha256(data).hexdigest(),
        "windows": 5,
        "dtype": "uint16",
        "tokens": 20,
    }
    windows = np.frombuffer(data, dtype="<u2").reshape(5, 5)
    assert windows[:, 0].tolist() == [0, 8, 16, 24, 32]
    assert (np.diff(windows) == 1).all()


def test_val_data_shorter_than_a_window_gives_no_windows(tmp_path: Path) -> None:
    sets = [write_set(tmp_path, "a", [range(9)], val=[[1, 2]])]
    assert run(task_for(tmp_path, sets, 20))["result"]["windows"] == 0
    assert (tmp_path / "heldout.bin").read_bytes() == b""


def test_a_changed_set_is_bad_data(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(9)], val=[range(30)])
    (tmp_path / pair[0][:16] / "manifest.json").write_text("{}")
    error = run(task_for(tmp_path, [pair], 20))["error"]
    assert error["exit_code"] == 65
    assert "manifest.json" in error["message"]
