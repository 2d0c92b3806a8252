"""A folder of records, one for each path of a dataset; a file is parsed again only after it changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.store.errors import DataError
from stoker.store.record import RecordDamaged, read_record

T = TypeVar("T")
Damaged = Callable[[Path, RecordDamaged], None]


class Shelf(Generic[T]):
    """The records of one dataset in one folder, as `parse` reads them.

    A folder may hold records of several datasets: those of others are passed over.
    """

    def __init__(self, directory: Path, dataset: str, parse: Callable[[Mapping[str, Any]], T]) -> None:
        self._directory = directory
        self._dataset = dataset
        self._parse = parse
        self._known: dict[str, tuple[tuple[int, int, int], tuple[str, T] | None]] = {}

    def read(self, damaged: Damaged | None = None) -> dict[str, T]:
        """Every whole record by its path, in path order.

        A damaged one is left out and handed to `damaged`; only the folder's owner may move it aside.
        Raises DataError where a whole record is of a shape this version cannot read.
        """
        seen: dict[str, tuple[tuple[int, int, int], tuple[str, T] | None]] = {}
        for name, stamp in self._stamps():
            known = self._known.get(name)
            if known is not None and known[0] == stamp:
                seen[name] = known
                continue
            try:
                seen[name] = (stamp, self._load(self._directory / name))
            except FileNotFoundError:  # its owner replaced or moved it between the scan and the read
                continue
            except RecordDamaged as error:
                if damaged is not None:
                    damaged(self._directory / name, error)
        self._known = seen
        return dict(sorted(found for _, found in seen.values() if found is not None))

    def _stamps(self) -> list[tuple[str, tuple[int, int, int]]]:
        stamps = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if not entry.name.endswith(".json") or entry.name.startswith("."):
                        continue
                    stat = entry.stat()
                    stamps.append((entry.name, (stat.st_ino, stat.st_size, stat.st_mtime_ns)))
        except FileNotFoundError:
            return []
        return sorted(stamps)

    def _load(self, file: Path) -> tuple[str, T] | None:
        record = read_record(file)
        if record.get("dataset") != self._dataset:
            return None
        try:
            return str(record["path"]), self._parse(record)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{file}: not a record this version reads ({error!r}); "
                "was it written by a newer Stoker? Upgrade, or move it out of the folder"
            ) from error
