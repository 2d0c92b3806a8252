"""The quarantine of bad checkpoints: they are moved, not deleted, and kept within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.store.files import drop_first, make_dir, move_durably, remove_tree
from stoker.store.record import new_id, utc_now, write_record

PREFIX, REASON = "checkpoint-", "reason.json"


@dataclass(frozen=True)
class Quarantined:
    """The result of a quarantine."""

    place: Path  # where the checkpoint is now
    dropped: tuple[str, ...]  # names of older places that were removed for it; each deserves an event


def quarantine_checkpoint(
    quarantine: Path, checkpoint: Path, reason: str, *, keep: int, keep_bytes: int
) -> Quarantined:
    """Moves a checkpoint into `<quarantine>/checkpoint-<name>-<time>/`, beside a reason.json.

    Then drop_over_budget removes places until at most `keep` places and `keep_bytes` bytes are left. Both
    directories must be on one file system.
    """
    place = quarantine / f"{PREFIX}{checkpoint.name}-{new_id()}"
    make_dir(place)
    # The reason comes first: after a crash the checkpoint is in place, to be convicted again, beside a note.
    why = {"v": 1, "kind": "checkpoint", "path": str(checkpoint), "reason": reason, "time": utc_now()}
    write_record(place / REASON, why)
    move_durably(checkpoint, place / checkpoint.name)
    return Quarantined(place, drop_over_budget(quarantine, keep=keep, keep_bytes=keep_bytes))


def put_back(quarantine: Path, checkpoint: Path) -> bool:
    """Moves the checkpoint of this name that was set aside last back to its path, unless another is there."""
    places = [place for place in quarantined(quarantine) if (place / checkpoint.name).is_dir()]
    if not places or checkpoint.exists():
        return False
    move_durably(places[-1] / checkpoint.name, checkpoint)
    remove_tree(places[-1])
    return True


def drop_over_budget(quarantine: Path, *, keep: int, keep_bytes: int) -> tuple[str, ...]:
    """Removes places until both limits hold, the newest checkpoint's last; returns their names.

    The newest stays whatever its size, unless `keep` is 0.
    """
    dropped = drop_first(quarantined(quarantine), keep=keep, keep_bytes=keep_bytes)
    return tuple(place.name for place in dropped)


def quarantined(quarantine: Path) -> list[Path]:
    """Returns the places of quarantined checkpoints, the checkpoint that was sealed first as the first."""
    return sorted((place for place in quarantine.glob(f"{PREFIX}*") if place.is_dir()), key=_sealed_at)


def _sealed_at(place: Path) -> tuple[int, str]:
    # Where all checkpoints are bad, the newest is convicted first: the time of a conviction says nothing.
    checkpoints = (path for path in place.iterdir() if path.is_dir())
    return max((path.stat().st_mtime_ns for path in checkpoints), default=0), place.name
