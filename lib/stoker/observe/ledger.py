"""The disk ledger: the bytes that each daemon claims of each file system, beyond the files already there.

A claim reserves room for work that has begun or must not be refused: checkpoints first, then sets being built
or brought back, then staging and landing. New work has the free bytes less the claims of all daemons.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from stoker.store.layout import DAEMONS, StateLayout
from stoker.store.record import RecordDamaged, read_record, values_of, write_record

Purpose = Literal["checkpoints", "sets", "staging", "landing"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)  # served in this order
Place = Literal["hot", "warm", "state"]

# Time between a write that met a full disk and the next try: statvfs may show room where writes still fail (a
# quota, no inodes), and only a try finds out.
LOOK_S = 3.0
ENOUGH_BYTES, ENOUGH_SHARE = 16 << 20, 0.02  # the smaller of both counts as room


@dataclass(frozen=True)
class Claim:
    """Bytes of a file system that a daemon will need for a purpose."""

    device: int  # st_dev of `path`
    path: str
    purpose: Purpose
    bytes: int


@dataclass(frozen=True)
class Disk:
    """The device number, size and free space of a file system, as a worker saw them.

    `inodes` is 0 where the file system makes them as needed.
    """

    device: int
    total_bytes: int
    free_bytes: int
    inodes: int = 0
    free_inodes: int = 0


def has_room(disk: Disk | None) -> bool:
    """Whether a measured disk has room to write again; False for an unmeasured disk."""
    return disk is not None and disk.free_bytes >= min(ENOUGH_BYTES, int(disk.total_bytes * ENOUGH_SHARE))


def write_claims(layout: StateLayout, daemon: str, claims: Iterable[Claim]) -> None:
    """Replaces a daemon's claims, durably."""
    body = {"v": 1, "daemon": daemon, "claims": [asdict(claim) for claim in claims]}
    write_record(layout.ledger(daemon), body)


def read_claims(layout: StateLayout, daemon: str) -> tuple[Claim, ...]:
    """Returns a daemon's claims; none where its record is missing or damaged (the daemon rewrites it)."""
    try:
        claims = read_record(layout.ledger(daemon))["claims"]
        return tuple(Claim(**values_of(Claim, claim)) for claim in claims)
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return ()


def others_claims(layout: StateLayout, daemon: str) -> tuple[Claim, ...]:
    """Returns the claims of the other daemons."""
    return tuple(claim for other in DAEMONS if other != daemon for claim in read_claims(layout, other))


def claimed_bytes(claims: Iterable[Claim], device: int, before: Purpose | None = None) -> int:
    """Returns the bytes claimed of a file system; with `before`, only for purposes up to that one."""
    served = PURPOSES if before is None else PURPOSES[: PURPOSES.index(before) + 1]
    return sum(claim.bytes for claim in claims if claim.device == device and claim.purpose in served)


def room(disk: Disk, claims: Iterable[Claim], *, floor_bytes: int = 0, purpose: Purpose | None = None) -> int:
    """Returns the bytes that a purpose can still claim; negative when the claims exceed the disk."""
    return disk.free_bytes - floor_bytes - claimed_bytes(claims, disk.device, purpose)
