"""When writers that met a full disk go on: as soon as statvfs shows room again, and no later."""

from __future__ import annotations

from typing import Literal

from stoker.observe.ledger import Disk

Place = Literal["hot", "warm", "state"]

# Between a failed write and the next: where statvfs sees room and the write failed all the same (a quota, no
# inodes), trying is the only way to know.
LOOK_S = 3.0
ENOUGH_BYTES, ENOUGH_SHARE = 16 << 20, 0.02  # the lesser of both counts as room


def has_room(disk: Disk | None) -> bool:
    """Whether a measured disk has room to write again; False for one that is not measured."""
    return disk is not None and disk.free_bytes >= min(ENOUGH_BYTES, int(disk.total_bytes * ENOUGH_SHARE))
