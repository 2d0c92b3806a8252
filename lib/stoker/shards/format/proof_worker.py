"""Worker that proves shard sets: `python -m stoker.shards.format.proof_worker`.

Task: {"sets": [{"path", "key"}...]}, key null for any key. `progress` messages while it reads.
Result: {"proofs": [...]} in the same order; `missing`: the path does not exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, heartbeat, run_worker
from stoker.shards.format.proof import prove_set


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Proves every set of the task."""
    return {"proofs": [_prove(one, report) for one in task["sets"]]}


def _prove(one: dict[str, Any], report: Report) -> dict[str, Any]:
    proof = prove_set(Path(one["path"]), key=one.get("key"), progress=heartbeat(report, one["path"]))
    return {
        "path": one["path"],
        "verdict": proof.verdict,
        "reason": proof.reason,
        "cached": proof.cached,
        "manifest_sha256": proof.manifest_sha256,
        "key": None if proof.manifest is None else proof.manifest.key,
        "books": None if proof.manifest is None else proof.manifest.books.to_mapping(),
        "unknown": list(proof.unknown),
        "missing": proof.verdict == "unreadable" and not Path(one["path"]).exists(),
    }


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
