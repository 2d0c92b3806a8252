"""The proof worker as the daemons run it: a process of its own that tells verdicts over its pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.checkpoint_data import seal


def test_the_worker_proves_each_checkpoint_and_says_what_is_wrong(tmp_path: Path) -> None:
    whole, rotten = seal(tmp_path, 5), seal(tmp_path, 10)
    data = bytearray((rotten / "model-00001.safetensors").read_bytes())
    data[-1] ^= 1
    (rotten / "model-00001.safetensors").write_bytes(data)
    paths = [str(rotten), str(whole), str(tmp_path / "gone")]

    done = subprocess.run(
        [sys.executable, "-m", "stoker.checkpoints.proof_worker"],
        input=json.dumps({"checkpoints": paths}).encode() + b"\n",
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )

    proofs = json.loads(done.stdout.splitlines()[-1])["result"]["proofs"]
    assert [proof["path"] for proof in proofs] == paths
    assert [proof["verdict"] for proof in proofs] == ["invalid", "proven", "unreadable"]
    assert proofs[0]["reason"] == "sha256 of model-00001.safetensors differs"
    assert proofs[1]["body"]["step"] == 5
    assert proofs[1]["body"] == json.loads((whole / "checkpoint.json").read_bytes())
