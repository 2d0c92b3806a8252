"""Worker that proves a checkpoint for the daemon.

Task: {"checkpoint": path}. Result: {"verdict", "reason", "digest", "body"}; the body when proven, and with
{"with_model": true} in the task "model", its model.json.
A message {"kind": "progress"} every few seconds shows that the worker is alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.checkpoints.proof import Proof, prove_checkpoint
from stoker.kit.workers.child import Report, heartbeat, run_worker
from stoker.store.record import parse_json


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    report("phase", phase="prove", path=task["checkpoint"])
    path = Path(task["checkpoint"])
    told = as_message(prove_checkpoint(path, progress=heartbeat(report, path.name)))
    if task.get("with_model") and told["verdict"] == "proven":
        told["model"] = parse_json((path / "model.json").read_bytes())
    return told


def as_message(proof: Proof) -> dict[str, Any]:
    """Returns a proof as JSON values."""
    body = None if proof.body is None else dict(proof.body.raw)
    return {"verdict": proof.verdict, "reason": proof.reason, "digest": proof.digest, "body": body}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
