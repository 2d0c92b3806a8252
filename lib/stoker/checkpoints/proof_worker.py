"""Worker: proves checkpoints away from the daemon.

Task: {"checkpoints": [path, ...], "deep": true}. Result: {"proofs": [{"path", "verdict", "reason", "cached",
"extra", "digest", "body"}, ...]} in the task's order; "body" is checkpoint.json when proven. A message
{"kind": "progress", "bytes"} for each 256 MB read keeps quiet deadlines away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.checkpoints.proof import Proof, prove_checkpoint
from stoker.checkpoints.read_progress import in_portions
from stoker.kit.workers.child import Report, run_worker

REPORT_BYTES = 256 << 20


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    proofs = []
    progress = in_portions(lambda done: report("progress", bytes=done), REPORT_BYTES)
    for name in task["checkpoints"]:
        report("phase", phase="prove", path=name)
        proof = prove_checkpoint(Path(name), deep=task.get("deep", True), progress=progress)
        proofs.append(as_message(name, proof))
    return {"proofs": proofs}


def as_message(path: str, proof: Proof) -> dict[str, Any]:
    """A proof as JSON."""
    return {
        "path": path,
        "verdict": proof.verdict,
        "reason": proof.reason,
        "cached": proof.cached,
        "extra": list(proof.extra),
        "digest": proof.digest,
        "body": None if proof.body is None else dict(proof.body.raw),
    }


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
