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
from stoker.store.errors import UnavailableError
from stoker.store.files import make_dir, move_durably, sweep_temporaries, unlink_durably
from stoker.store.names import inside, record_name
from stoker.store.record import RecordDamaged, read_record, write_record

PARTS, EVIDENCE = ".parts", ".evidence"


@dataclass(frozen=True)
class PartRecord:
    """What is durable of an unfinished file: `offset` bytes, whose sha256 is `prefix`.

    `validator` and `total` are the answer's that they came from; `sums` is what the listing wanted then, and
    `mismatches` how often the whole had another sum. During the boot of the machine that is named, further
    bytes of the part are of that answer too, written and not claimed.
    """

    dataset: str
    path: str
    offset: int = 0
    prefix: str = ""
    validator: str = ""
    etag: str = ""
    total: int | None = None
    revision: str = ""
    sums: str = ""
    mismatches: int = 0
    boot: str = ""

    @property
    def kept(self) -> Kept:
        """For the decisions."""
        return Kept(self.offset, self.validator, self.total)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> PartRecord:
        """Read one; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        total = record["total"]
        return cls(
            dataset=str(record["dataset"]),
            path=str(record["path"]),
            offset=int(record["offset"]),
            prefix=str(record["prefix"]),
            validator=str(record["validator"]),
            etag=str(record["etag"]),
            total=None if total is None else int(total),
            revision=str(record["revision"]),
            sums=str(record["sums"]),
            mismatches=int(record["mismatches"]),
            boot=str(record.get("boot", "")),
        )


class Landing:
    """The landing of one dataset. Raises UnavailableError when it is not the directory it was."""

    def __init__(self, root: Path, dataset: str, *, expected: bool) -> None:
        """`expected`: files landed here before, so no directory means an unmounted disk, not a new one."""
        self.root, self.dataset, self.boot = root, dataset, boot_id()
        self.naming = threading.Lock()  # folders are made and removed by one thread at a time
        if expected and not (root / PARTS).is_dir():
            raise UnavailableError(
                f"{root} is not there although files landed in it; mount the disk, or, if what it held is "
                f"lost, `mkdir -p {root / PARTS}`: all is fetched again"
            )
        for folder in (root, root / PARTS):
            make_dir(folder)
        sweep_temporaries(root / PARTS)
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folds = (root / PARTS.upper()).exists()  # a NAS, say, to which A and a are one name

    def insist(self) -> None:
        """Raise UnavailableError when another directory, or none, is at the root's path now."""
        try:
            same = os.path.samestat(os.fstat(self._descriptor), self.root.stat())
        except OSError as error:
            raise UnavailableError(f"{self.root}: {error.strerror}; mount the disk again") from error
        if not same:
            raise UnavailableError(f"{self.root} is another directory than before; mount the disk again")

    def target(self, path: str) -> Path:
        """A whole file's place."""
        return inside(self.root, path)

    def taken_by(self, path: str) -> str:
        """The name of another file that this file system takes for that one; empty where there is none."""
        if not self._folds:
            return ""
        target = self.target(path)
        try:
            names = [file.name for file in target.parent.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return ""
        wanted = target.name.casefold()
        return next((name for name in names if name != target.name and name.casefold() == wanted), "")

    def part(self, path: str) -> Path:
        """The bytes of an unfinished file."""
        return self.root / PARTS / f"{record_name(self.dataset, path)}.part"

    def record(self, path: str) -> Path:
        """The record of an unfinished file."""
        return self.root / PARTS / f"{record_name(self.dataset, path)}.json"

    def read_part(self, path: str) -> PartRecord | None:
        """What is claimed durable of a file; None where nothing is, or nothing that can be believed."""
        try:
            return PartRecord.from_record(read_record(self.record(path)))
        except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
            return None

    def write_part(self, record: PartRecord) -> None:
        """Claim bytes; they must be durable already. UnavailableError when the directory is not there."""
        self.insist()
        try:
            write_record(self.record(record.path), {"v": 1, **asdict(record)})
        except FileNotFoundError as error:
            raise UnavailableError(f"{self.root / PARTS} is not there; mount the disk again") from error

    def unfinished(self) -> list[PartRecord]:
        """Every unfinished file, by path; what no record speaks of is removed: nobody could go on with it."""
        found, named = [], set()
        for file in (self.root / PARTS).glob("*.json"):
            with contextlib.suppress(FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
                record = PartRecord.from_record(read_record(file))
                if self.record(record.path) == file:
                    found.append(record)
                    named.add(file.stem)
        for file in list((self.root / PARTS).iterdir()):
            if file.stem not in named:
                unlink_durably(file)
        return sorted(found, key=lambda record: record.path)

    def foreign(self, most: int) -> list[str]:
        """Partial files of other clients, at most so many: theirs, and never touched."""
        found: list[str] = []
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                folders[:] = [name for name in folders if name not in (PARTS, EVIDENCE)]
            found += [
                str(Path(folder, name).relative_to(self.root))
                for name in files
                if name.endswith(FOREIGN_SUFFIXES)
            ]
            if len(found) >= most:
                break
        return sorted(found)[:most]

    def forget(self, path: str) -> None:
        """Drop what is unfinished of a file: the bytes first, for a claim without bytes starts anew."""
        unlink_durably(self.part(path))
        unlink_durably(self.record(path))

    def publish(self, path: str) -> None:
        """Give a whole, durable and proven part its name. FileExistsError when the name is taken."""
        target = self.target(path)
        self.insist()
        with self.naming:
            make_dir(target.parent)
            move_durably(self.part(path), target)
        unlink_durably(self.record(path))

    def remove(self, path: str) -> None:
        """Unlink a whole file, and the folders that it leaves empty."""
        target = self.target(path)
        with self.naming:
            with contextlib.suppress(FileNotFoundError):  # its folder is gone with it: as asked
                unlink_durably(target)
            folder = target.parent
            while folder != self.root:
                try:
                    folder.rmdir()
                except OSError:  # not empty, mostly
                    return
                folder = folder.parent


def boot_id() -> str:
    """What tells this run of the machine from those before; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def part_bytes(path: Path) -> int:
    """How long a part is; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
