"""Content that was not what it should be, kept for a look within a budget: the newest stays, older goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.fetch.landing import EVIDENCE, Landing, part_bytes
from stoker.store.files import make_dir, move_durably, remove_tree, unlink_durably
from stoker.store.names import new_id, record_name, utc_now
from stoker.store.record import write_record

CONTENT = "content"


def keep_evidence(
    landing: Landing, bad: Path, path: str, reason: Mapping[str, Any], *, most_files: int, most_bytes: int
) -> str:
    """Move wrong content into the evidence, within its budget; returns its place, "" where none is kept."""
    with landing.naming:
        return _keep(
            landing, bad, {"v": 1, "kind": "download", "path": path, **reason}, (most_files, most_bytes)
        )


def _keep(landing: Landing, bad: Path, note: Mapping[str, Any], most: tuple[int, int]) -> str:
    most_files, most_bytes = most
    folder = landing.root / EVIDENCE
    size = part_bytes(bad)
    if not most_files or size > most_bytes:
        unlink_durably(bad)
        return ""
    make_dir(folder)
    kept = [(place.name, sum(part_bytes(file) for file in place.iterdir())) for place in folder.iterdir()]
    for name in too_many(kept, most_files - 1, most_bytes - size):
        remove_tree(folder / name)
    place = folder / f"{new_id()}-{record_name(landing.dataset, note['path'])}"
    make_dir(place)
    write_record(place / "reason.json", {**note, "time": utc_now()})
    move_durably(bad, place / CONTENT)
    return str(place)


def sweep_evidence(landing: Landing) -> None:
    """Remove what a kill left before the content came: it is where it was, and will be found wrong again."""
    folder = landing.root / EVIDENCE
    for place in list(folder.iterdir()) if folder.is_dir() else []:
        if not (place / CONTENT).exists():
            remove_tree(place)


def too_many(kept: Iterable[tuple[str, int]], most_files: int, most_bytes: int) -> list[str]:
    """The oldest of (name, bytes), names sorting by age, that go until the rest is within both limits."""
    rest = sorted(kept)
    gone = []
    while rest and (len(rest) > most_files or sum(size for _, size in rest) > most_bytes):
        gone.append(rest.pop(0)[0])
    return gone
