"""The landing of fetched files: whole files under their own names, unfinished files in one hidden folder.

    <landing>/<path>                      whole, and its sum is right
    <landing>/.parts/<name>.part          the bytes that came so far
    <landing>/.parts/<name>.json          a record: how many of them are durable, and of which content
    <landing>/.evidence/<time>-<name>/    wrong content, with reason.json

Only the download watchdog's workers write here. Data is durable before the record that claims it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.corpus.http.retry_rules import PartialContent
from stoker.corpus.source.folder import FOREIGN_SUFFIXES
from stoker.kit.lock import Lock, read_contents
from stoker.store.errors import LockHeld, UnavailableError
from stoker.store.files import (
    drop_first,
    inside,
    make_dir,
    move_durably,
    remove_tree,
    sweep_temporaries,
    unlink_durably,
)
from stoker.store.layout import LANDING_LOCK, record_name
from stoker.store.record import RecordDamaged, new_id, read_record, utc_now, values_of, write_record

PARTS, EVIDENCE, CONTENT = ".parts", ".evidence", "content"


@dataclass(frozen=True, kw_only=True)
class PartRecord(PartialContent):
    """The durable part of an unfinished file: `offset` bytes with the sha256 `prefix`.

    `validator` and `total` are of the answer that sent them; `sums` is the listing's sum at that time, and
    `mismatches` how often the whole file had another sum. Later bytes of the part are written but not
    claimed.
    """

    dataset: str
    path: str
    prefix: str = ""
    sums: str = ""
    mismatches: int = 0

    @classmethod
    def read(cls, file: Path) -> PartRecord | None:
        """Returns the record in that file; None for a missing or damaged record."""
        try:
            record = read_record(file)
            return cls(**values_of(cls, record))
        except (FileNotFoundError, RecordDamaged, TypeError):
            return None


class Landing:
    """The landing of one dataset. Raises UnavailableError when the directory at its path was replaced."""

    def __init__(self, root: Path, dataset: str, *, expected: bool) -> None:
        """`expected`: files landed here before, so a missing directory means an unmounted disk."""
        self.root, self.dataset = root, dataset
        self._naming = threading.Lock()  # one thread at a time makes and removes folders
        if expected and not (root / PARTS).is_dir():
            raise UnavailableError(
                f"{root} is not there although files landed in it; mount the disk, or, if what it held is "
                f"lost, `mkdir -p {root / PARTS}`: all is fetched again"
            )
        for folder in (root, root / PARTS):
            make_dir(folder)
        sweep_temporaries(root / PARTS)
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def own(self, pipeline: str) -> Lock:
        """Locks the landing for a pipeline, named as "pipeline NAME (state DIRECTORY)".

        Two pipelines in one landing would take each other's files for wrong content. Raises UnavailableError
        when another pipeline owns or locks the landing.
        """
        file = self.root / LANDING_LOCK
        owner = read_contents(file).purpose
        if owner and owner != pipeline:
            raise UnavailableError(
                f"{self.root} is another's: {owner}; give this pipeline another dataset.name or disk, or, "
                f"if that one is gone or moved, remove {file}"
            )
        try:
            return Lock.acquire(file, purpose=pipeline)
        except LockHeld as error:
            raise UnavailableError(str(error)) from error

    def insist(self) -> None:
        """Raises UnavailableError when the root's path no longer names the opened directory."""
        try:
            same = os.path.samestat(os.fstat(self._descriptor), self.root.stat())
        except OSError as error:
            raise UnavailableError(f"{self.root}: {error.strerror}; mount the disk again") from error
        if not same:
            raise UnavailableError(f"{self.root} is another directory than before; mount the disk again")

    # Unfinished files

    def part(self, path: str) -> Path:
        """Returns the path of an unfinished file's bytes."""
        return self.root / PARTS / f"{record_name(self.dataset, path)}.part"

    def record(self, path: str) -> Path:
        """Returns the path of an unfinished file's record."""
        return self.root / PARTS / f"{record_name(self.dataset, path)}.json"

    def write_part(self, record: PartRecord) -> None:
        """Writes a claim of durable bytes. Raises UnavailableError when the directory is missing."""
        self.insist()
        write_record(self.record(record.path), {"v": 1, **asdict(record)})

    def sweep(self) -> None:
        """Removes parts without a record, which no worker can continue, and evidence without content."""
        for file in list((self.root / PARTS).iterdir()):
            record = PartRecord.read(file.with_suffix(".json"))
            if record is None or self.part(record.path).stem != file.stem:
                unlink_durably(file)
        # The bytes of a move that a kill cut off are still in their part
        for place in (self.root / EVIDENCE).glob("*"):
            if not (place / CONTENT).exists():
                remove_tree(place)

    def forget(self, path: str) -> None:
        """Removes an unfinished file: first the bytes, since a claim without bytes starts from 0."""
        unlink_durably(self.part(path))
        unlink_durably(self.record(path))

    # Whole files

    def target(self, path: str) -> Path:
        """Returns the path of a whole file."""
        return inside(self.root, path)

    def publish(self, path: str) -> None:
        """Renames a proven part to its file name; raises FileExistsError when the name is taken."""
        target = self.target(path)
        self.insist()
        with self._naming:
            make_dir(target.parent)
            move_durably(self.part(path), target)
        unlink_durably(self.record(path))

    def remove(self, path: str) -> None:
        """Unlinks a whole file, and the folders it leaves empty."""
        self.insist()
        target = self.target(path)
        with self._naming:
            with contextlib.suppress(FileNotFoundError):  # its folder is missing too
                unlink_durably(target)
            with contextlib.suppress(OSError):  # usually because a folder is not empty
                for folder in target.relative_to(self.root).parents:
                    if folder.parts:
                        (self.root / folder).rmdir()

    # Unmanaged files and wrong content

    def unmanaged(self, most: int) -> list[str]:
        """Returns partial files of other clients, at most so many; Stoker never changes them."""
        found = (each.relative_to(self.root) for each in self.root.rglob("*"))
        unmanaged = (
            str(each)
            for each in found
            if each.name.endswith(FOREIGN_SUFFIXES) and each.parts[0] not in (PARTS, EVIDENCE)
        )
        return sorted(unmanaged)[:most]

    def keep_evidence(
        self, bad: Path, path: str, about: Mapping[str, Any], most_files: int, most_bytes: int
    ) -> str:
        """Moves wrong content into the evidence, removing the oldest to stay within its budget.

        Returns the new path, "" if the content was not kept.
        """
        if not most_files or part_bytes(bad) > most_bytes:
            unlink_durably(bad)
            return ""
        folder = self.root / EVIDENCE
        with self._naming:
            place = folder / f"{new_id()}-{record_name(self.dataset, path)}"
            make_dir(place)
            note = {"v": 1, "kind": "download", "path": path, "reason": "mismatch", "time": utc_now()}
            write_record(place / "reason.json", {**note, **about})
            move_durably(bad, place / CONTENT)
            drop_first(sorted(folder.iterdir()), keep=most_files, keep_bytes=most_bytes)
        return str(place)


def part_bytes(path: Path) -> int:
    """Returns the length of a part; 0 if it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
