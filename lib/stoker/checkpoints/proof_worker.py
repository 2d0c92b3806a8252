"""Worker: proves a checkpoint away from the daemon.

Task: {"checkpoint": path}. Result: {"verdict", "reason", "digest", "body"}, the body where it is proven.
A message {"kind": "progress", "bytes"} for each 256 MB read keeps quiet deadlines away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.checkpoints.proof import Proof, prove_checkpoint
from stoker.checkpoints.read_progress import in_portions
from stoker.kit.workers.child import Report, run_worker

REPORT_BYTES = 256 << 20


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    report("phase", phase="prove", path=task["checkpoint"])
    progress = in_portions(lambda done: report("progress", bytes=done), REPORT_BYTES)
    return as_message(prove_checkpoint(Path(task["checkpoint"]), progress=progress))


def as_message(proof: Proof) -> dict[str, Any]:
    """A proof as JSON."""
    body = None if proof.body is None else dict(proof.body.raw)
    return {"verdict": proof.verdict, "reason": proof.reason, "digest": proof.digest, "body": body}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
