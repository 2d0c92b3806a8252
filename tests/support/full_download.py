"""A download watchdog whose landing is on a small disk that fills; run apart, 0 when all held."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.loopback_hub import LoopbackHub, noise
from support.mounts import mount_small
from support.waiting import wait_until
from support.watchdogs import WATCHDOG, from_hub, landed, put, receipt_states

SIZE = 2_000_000


def main(home: Path) -> None:
    """The pause is told, what is here stays, and room alone ends it."""
    os.environ |= {"HF_TOKEN": "", "NO_PROXY": "*", "CREDENTIALS_DIRECTORY": ""}
    hot = home / "pipe" / "hot"
    mount_small(hot, 8 << 20)
    filler = hot / "filler"
    filler.write_bytes(bytes(4 << 20))
    files = {f"{i}.parquet": noise(SIZE, i) for i in range(2)}
    with LoopbackHub(home / "hub") as hub:
        put(hub, "org/full", files)
        data = from_hub(home / "pipe", hub, "org/full", download__files_at_once=1)
        daemon = data.start(WATCHDOG)
        try:
            wait_until(lambda: data.events(WATCHDOG, "disk_full"), what="the word")
            wait_until(lambda: "bytes free" in data.status(WATCHDOG)["paused"], what="the pause")
            assert sorted(receipt_states(data).values()) == ["verified"], receipt_states(data)
            filler.unlink()
            wait_until(lambda: len(data.receipts()) == 2, what="the other file")
            wait_until(lambda: not data.status(WATCHDOG)["paused"], what="the end of the pause")
            assert data.events(WATCHDOG, "download_resumed")
            assert landed(data) == files
            assert hub.served("org/full") == 2 * SIZE
        finally:
            assert daemon.stop() == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
