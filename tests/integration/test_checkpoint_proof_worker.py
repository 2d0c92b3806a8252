"""The proof worker as the daemons run it: a process of its own that tells verdicts over its pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.checkpoint_data import seal


def test_the_worker_proves_a_checkpoint_and_says_what_is_wrong(tmp_path: Path) -> None:
    whole, rotten = seal(tmp_path, 5), seal(tmp_path, 10)
    data = bytearray((rotten / "model-00001.safetensors").read_bytes())
    data[-1] ^= 1
    (rotten / "model-00001.safetensors").write_bytes(data)
    invalid, proven, unreadable = map(prove, (rotten, whole, tmp_path / "gone"))
    verdicts = [proof["verdict"] for proof in (invalid, proven, unreadable)]
    assert verdicts == ["invalid", "proven", "unreadable"]
    assert invalid["reason"] == "sha256 of model-00001.safetensors differs"
    assert proven["body"]["step"] == 5
    assert proven["body"] == json.loads((whole / "checkpoint.json").read_bytes())


def prove(checkpoint: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.checkpoints.proof_worker"],
        input=json.dumps({"checkpoint": str(checkpoint)}).encode() + b"\n",
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])["done"]
