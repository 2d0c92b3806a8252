"""When writers that met a full disk continue: as soon as statvfs shows room again."""

from __future__ import annotations

from typing import Literal

from stoker.observe.ledger import Disk

Place = Literal["hot", "warm", "state"]

# Time between a failed write and the next try: statvfs may show room where writes still fail (a quota, no
# inodes), and only a try finds out.
LOOK_S = 3.0
ENOUGH_BYTES, ENOUGH_SHARE = 16 << 20, 0.02  # the smaller of both counts as room


def has_room(disk: Disk | None) -> bool:
    """Whether a measured disk has room to write again; False for an unmeasured disk."""
    return disk is not None and disk.free_bytes >= min(ENOUGH_BYTES, int(disk.total_bytes * ENOUGH_SHARE))
