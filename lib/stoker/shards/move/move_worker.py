"""Worker that moves one shard set: `python -m stoker.shards.move.move_worker`.

task: {"what": "copy", "source", "target"} or {"what": "evict", "hot", "copy"}, and {"key", "manifest_sha256",
    "trash", "trash_id", "disks": [{"path", "device", "inode"} of each owner lock]}
messages: {"kind": "progress"} while it reads and writes
result: {"status", "reason", "bytes", "cached"}, the fields of stoker.shards.move.moving.Moved
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, heartbeat, run_worker
from stoker.shards.move.moving import Identity, copy_set, evict_set


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Copies the set or evicts it."""
    identity = Identity(task["key"], task["manifest_sha256"], task["trash_id"], task["disks"])
    trash, progress = Path(task["trash"]), heartbeat(report, task["key"][:16])
    if task["what"] == "evict":
        return asdict(evict_set(Path(task["hot"]), Path(task["copy"]), trash, identity, progress))
    return asdict(copy_set(Path(task["source"]), Path(task["target"]), trash, identity, progress))


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
