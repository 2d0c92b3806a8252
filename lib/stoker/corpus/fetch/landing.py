"""Where fetched files land: whole under their own name, unfinished ones beside them in one hidden folder.

    <landing>/<path>                      whole, and its sum is right
    <landing>/.parts/<name>.part          the bytes that came so far
    <landing>/.parts/<name>.json          a record: how many of them are durable, and of which content
    <landing>/.evidence/<time>-<name>/    content that was not what it should be, with reason.json

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

from stoker.corpus.http.retry_rules import Kept
from stoker.corpus.source.folder import FOREIGN_SUFFIXES
from stoker.kit.lock import Lock, read_contents
from stoker.store.errors import LockHeld, UnavailableError
from stoker.store.files import make_dir, move_durably, remove_tree, sweep_temporaries, unlink_durably
from stoker.store.layout import LANDING_LOCK
from stoker.store.names import inside, new_id, record_name, utc_now
from stoker.store.record import RecordDamaged, read_record, values_of, write_record

PARTS, EVIDENCE, CONTENT = ".parts", ".evidence", "content"


@dataclass(frozen=True, kw_only=True)
class PartRecord(Kept):
    """What is durable of an unfinished file: `offset` bytes, whose sha256 is `prefix`.

    `validator` and `total` are the answer's that they came from; `sums` is what the listing wanted then, and
    `mismatches` how often the whole had another sum. Further bytes of the part are written and not claimed.
    """

    dataset: str
    path: str
    prefix: str = ""
    sums: str = ""
    mismatches: int = 0

    @classmethod
    def read(cls, file: Path) -> PartRecord | None:
        """The record in that file; None where there is none, or none that can be believed."""
        try:
            record = read_record(file)
            return cls(**values_of(cls, record))
        except (FileNotFoundError, RecordDamaged, TypeError):
            return None


class Landing:
    """The landing of one dataset. Raises UnavailableError when it is not the directory it was."""

    def __init__(self, root: Path, dataset: str, *, expected: bool) -> None:
        """`expected`: files landed here before, so no directory means an unmounted disk, not a new one."""
        self.root, self.dataset = root, dataset
        self._naming = threading.Lock()  # folders are made and removed by one thread at a time
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
        """Hold the landing for a pipeline, "pipeline NAME (state DIRECTORY)"; two pipelines in one landing
        would take each other's files for wrong content. UnavailableError where it is another's, or held.
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
        """Raise UnavailableError when another directory, or none, is at the root's path now."""
        try:
            same = os.path.samestat(os.fstat(self._descriptor), self.root.stat())
        except OSError as error:
            raise UnavailableError(f"{self.root}: {error.strerror}; mount the disk again") from error
        if not same:
            raise UnavailableError(f"{self.root} is another directory than before; mount the disk again")

    # Unfinished files

    def part(self, path: str) -> Path:
        """The bytes of an unfinished file."""
        return self.root / PARTS / f"{record_name(self.dataset, path)}.part"

    def record(self, path: str) -> Path:
        """The record of an unfinished file."""
        return self.root / PARTS / f"{record_name(self.dataset, path)}.json"

    def write_part(self, record: PartRecord) -> None:
        """Claim bytes; they must be durable already. UnavailableError when the directory is not there."""
        self.insist()
        write_record(self.record(record.path), {"v": 1, **asdict(record)})

    def sweep(self) -> None:
        """Remove what no record speaks of, as nothing can continue it."""
        for file in list((self.root / PARTS).iterdir()):
            record = PartRecord.read(file.with_suffix(".json"))
            if record is None or self.part(record.path).stem != file.stem:
                unlink_durably(file)

    def forget(self, path: str) -> None:
        """Drop what is unfinished of a file: the bytes first, as a claim without bytes starts from 0."""
        unlink_durably(self.part(path))
        unlink_durably(self.record(path))

    # Whole files

    def target(self, path: str) -> Path:
        """A whole file's place."""
        return inside(self.root, path)

    def publish(self, path: str) -> None:
        """Give a whole, durable and proven part its name. FileExistsError when the name is taken."""
        target = self.target(path)
        self.insist()
        with self._naming:
            make_dir(target.parent)
            move_durably(self.part(path), target)
        unlink_durably(self.record(path))

    def remove(self, path: str) -> None:
        """Unlink a whole file, and the folders that it leaves empty."""
        self.insist()
        target = self.target(path)
        with self._naming:
            with contextlib.suppress(FileNotFoundError):  # its folder is gone with it: as asked
                unlink_durably(target)
            with contextlib.suppress(OSError):  # a folder is not empty, mostly
                for folder in target.relative_to(self.root).parents:
                    if folder.parts:
                        (self.root / folder).rmdir()

    # Files that are not ours, or not right

    def foreign(self, most: int) -> list[str]:
        """Partial files of other clients, at most so many: theirs, and never touched."""
        found = (each.relative_to(self.root) for each in self.root.rglob("*"))
        foreign = (
            str(each)
            for each in found
            if each.name.endswith(FOREIGN_SUFFIXES) and each.parts[0] not in (PARTS, EVIDENCE)
        )
        return sorted(foreign)[:most]

    def keep_evidence(
        self, bad: Path, path: str, reason: Mapping[str, Any], *, most_files: int, most_bytes: int
    ) -> str:
        """Move wrong content into the evidence, whose oldest gives way to stay within its budget; returns
        the new place, "" where none is kept."""
        size = part_bytes(bad)
        if not most_files or size > most_bytes:
            unlink_durably(bad)
            return ""
        folder = self.root / EVIDENCE
        with self._naming:
            make_dir(folder)
            kept = sorted(folder.iterdir(), reverse=True)  # the newest first
            for number, place in enumerate(kept, 2):
                size += sum(part_bytes(file) for file in place.iterdir())
                if number > most_files or size > most_bytes:
                    remove_tree(place)
            place = folder / f"{new_id()}-{record_name(self.dataset, path)}"
            make_dir(place)
            note = {"v": 1, "kind": "download", "path": path, **reason, "time": utc_now()}
            write_record(place / "reason.json", note)
            move_durably(bad, place / CONTENT)
        return str(place)


def part_bytes(path: Path) -> int:
    """How long a part is; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
