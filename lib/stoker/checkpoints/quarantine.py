"""Bad checkpoints are moved, not deleted, and the place they are moved to keeps within a budget."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.format import step_of
from stoker.store.errors import DataError
from stoker.store.files import make_dir, move_durably, remove_tree
from stoker.store.names import new_id, utc_now
from stoker.store.record import read_record, write_record

PREFIX, REASON = "checkpoint-", "reason.json"


@dataclass(frozen=True)
class Quarantined:
    """Where the checkpoint went, and which older places were dropped for it (each worth an event)."""

    place: Path
    dropped: tuple[str, ...]


def quarantine_checkpoint(
    quarantine: Path, checkpoint: Path, reason: str, *, keep: int, keep_bytes: int
) -> Quarantined:
    """Move a checkpoint into `<quarantine>/checkpoint-<name>-<time>/` with a reason.json beside it.

    Then places go until at most `keep` of `keep_bytes` in sum are left, as drop_over_budget has it. Both
    directories must be on one file system.
    """
    place = quarantine / f"{PREFIX}{checkpoint.name}-{new_id()}"
    make_dir(place)
    # The reason first: a crash in between leaves the checkpoint in place, to be convicted again, and a note.
    why = {"v": 1, "kind": "checkpoint", "path": str(checkpoint), "reason": reason, "time": utc_now()}
    write_record(place / REASON, why)
    move_durably(checkpoint, place / checkpoint.name)
    return Quarantined(place, drop_over_budget(quarantine, keep=keep, keep_bytes=keep_bytes))


def drop_over_budget(quarantine: Path, *, keep: int, keep_bytes: int) -> tuple[str, ...]:
    """Remove places until both limits hold, the newest checkpoint's last; returns their names.

    That one stays whatever its size, unless `keep` is 0.
    """
    places = _newest_last(quarantined(quarantine))
    return tuple(place.name for place in drop_first(places, keep=keep, keep_bytes=keep_bytes))


def drop_first(places: Sequence[Path], *, keep: int, keep_bytes: int) -> list[Path]:
    """Remove the first of some directories until both limits hold; returns the removed ones.

    The last one stays whatever its size, unless `keep` is 0.
    """
    left, sizes = list(places), {place: _tree_bytes(place) for place in places}
    while len(left) > keep or (len(left) > 1 and sum(sizes[place] for place in left) > keep_bytes):
        remove_tree(left.pop(0))
    return [place for place in places if place not in left]


def quarantined(quarantine: Path) -> list[Path]:
    """The places of quarantined checkpoints, oldest first by the time in their names."""
    try:
        names = [entry.name for entry in os.scandir(quarantine) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    ours = [quarantine / name for name in names if name.startswith(PREFIX)]
    # Names know seconds, and a restart convicts several in one.
    return sorted(ours, key=lambda place: (place.name.rsplit("-", 2)[1], place.stat().st_mtime_ns))


def _newest_last(places: Sequence[Path]) -> list[Path]:
    """The run that a checkpoint was convicted of last comes last, and in each run the highest step.

    Where all of a run's are bad the newest is convicted first: when that was says nothing of its worth.
    """
    runs = [_run_of(place) for place in places]
    convicted = {run: number for number, run in enumerate(runs)}
    order = sorted(
        range(len(places)),
        key=lambda at: (convicted[runs[at]], step_of(places[at].name.removeprefix(PREFIX)) or 0, at),
    )
    return [places[at] for at in order]


def _run_of(place: Path) -> str:
    try:
        return str(Path(read_record(place / REASON)["path"]).parent)
    except (OSError, DataError, KeyError):
        return ""  # whatever it was of, it is held against its like


def _tree_bytes(path: Path) -> int:
    return sum(
        (Path(directory) / name).lstat().st_size for directory, _, names in os.walk(path) for name in names
    )
