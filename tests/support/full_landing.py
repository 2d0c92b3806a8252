"""A landing on a small disk that fills while a file is fetched; run apart, it ends with 0 when all held."""

from __future__ import annotations

import sys
from pathlib import Path

from support.fetching import Fetching, fetch_task, hub_file, plain_file
from support.loopback_hub import LoopbackHub, noise
from support.mounts import mount_small

SIZE = 3_000_000


def main(home: Path) -> None:
    """Too little room is seen beforehand where the size is known, else met; what came is kept."""
    disk = home / "disk"
    mount_small(disk, 5 << 20)
    landing = disk / "landing"
    with LoopbackHub(home / "hub") as hub:
        known = hub_file(hub, "known.parquet", noise(SIZE, 1))
        worker = Fetching(fetch_task(landing, hub, floor=3 << 20))
        worker.fetch(known)
        failed = worker.until("failed")
        assert failed["class"] == "disk_full", failed
        assert hub.served("known") == 0
        worker.kill()

        (disk / "other").write_bytes(bytes(3 << 20))
        unknown = plain_file(hub, "unknown.bin", noise(SIZE, 1))
        worker = Fetching(fetch_task(landing, hub))
        worker.fetch(unknown)
        failed = worker.until("failed")
        assert failed["class"] == "disk_full", failed
        (disk / "other").unlink()
        worker.fetch(unknown)
        worker.until("done")
        assert (landing / "unknown.bin").read_bytes() == noise(SIZE, 1)
        worker.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
