"""The disk ledger: what each daemon claims of each file system beyond what lies there already.

A claim is room for work that has begun or must not be refused: checkpoints first, then sets being built or
brought back, then staging and landing. Free bytes less the claims of all daemons are what is left to give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from stoker.store.layout import DAEMONS, StateLayout
from stoker.store.record import RecordDamaged, read_record, write_record

Purpose = Literal["checkpoints", "sets", "staging", "landing"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)  # served in this order


@dataclass(frozen=True)
class Claim:
    """So many bytes of one file system, known by the device number of `path` (st_dev), for a purpose."""

    device: int
    path: str
    purpose: Purpose
    bytes: int


@dataclass(frozen=True)
class Disk:
    """A file system as a worker saw it: its device number, and its size and free space in bytes."""

    device: int
    total_bytes: int
    free_bytes: int


def write_claims(layout: StateLayout, daemon: str, claims: Iterable[Claim]) -> None:
    """Make a daemon's claims durable, in place of its earlier ones."""
    body = {"v": 1, "daemon": daemon, "claims": [asdict(claim) for claim in claims]}
    write_record(layout.ledger(daemon), body)


def read_claims(layout: StateLayout, daemon: str) -> tuple[Claim, ...]:
    """A daemon's claims; none where its record is missing or damaged (its owner writes it anew)."""
    try:
        return tuple(_parse(claim) for claim in read_record(layout.ledger(daemon))["claims"])
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return ()


def others_claims(layout: StateLayout, daemon: str) -> tuple[Claim, ...]:
    """What the other daemons claim."""
    return tuple(claim for other in DAEMONS if other != daemon for claim in read_claims(layout, other))


def claimed_bytes(claims: Iterable[Claim], device: int, before: Purpose | None = None) -> int:
    """Bytes claimed of a file system; with `before` only for that purpose and those served before it."""
    served = PURPOSES if before is None else PURPOSES[: PURPOSES.index(before) + 1]
    return sum(claim.bytes for claim in claims if claim.device == device and claim.purpose in served)


def room(disk: Disk, claims: Iterable[Claim], *, floor_bytes: int = 0, purpose: Purpose | None = None) -> int:
    """Bytes that may still be given out for a purpose: negative when the disk is short of what is claimed."""
    return disk.free_bytes - floor_bytes - claimed_bytes(claims, disk.device, purpose)


def _parse(claim: Mapping[str, Any]) -> Claim:
    purpose = claim["purpose"]
    if purpose not in PURPOSES:
        raise ValueError(f"purpose {purpose!r}")
    return Claim(int(claim["device"]), str(claim["path"]), purpose, int(claim["bytes"]))
