"""The demand: which fetched files the stage-shard loop needs no more, and which it misses.

The loop alone writes this record, whole each time; the download watchdog reconciles the landing with it. What
came true, or may not be done, the loop takes out with its next version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.store.errors import storage_errors
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, read_record, write_record


@dataclass(frozen=True)
class Unneeded:
    """A file to remove from the landing: its content, and the path whose shard set stands for that content
    (another path than the file's for a duplicate)."""

    sha256: str
    owner: str


@dataclass(frozen=True)
class Demand:
    """`unneeded` by path; `missed` are the contents (sha256) to fetch again, by path."""

    unneeded: Mapping[str, Unneeded] = field(default_factory=dict)
    missed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Demand:
        """Read one; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        unneeded = {str(path): Unneeded(str(sha), str(owner)) for path, sha, owner in record["unneeded"]}
        return cls(unneeded, {str(path): str(sha256) for path, sha256 in record["missed"]})

    def to_record(self, dataset: str) -> dict[str, Any]:
        """The record's body."""
        return {
            "v": 1,
            "dataset": dataset,
            "unneeded": [[path, one.sha256, one.owner] for path, one in sorted(self.unneeded.items())],
            "missed": [list(one) for one in sorted(self.missed.items())],
        }


def write_demand(layout: StateLayout, dataset: str, demand: Demand) -> None:
    """Make the demand durable."""
    write_record(layout.demand, demand.to_record(dataset))


class DemandReader:
    """Reads the demand again only after its file changed."""

    def __init__(self, layout: StateLayout, dataset: str) -> None:
        self._file, self._dataset = layout.demand, dataset
        self._stamp: tuple[int, ...] | None = None
        self._demand = Demand()

    def read(self) -> Demand:
        """The demand as it is now, the same object while its file is the same.

        Empty where there is none, or a damaged one: the loop writes it again when it starts or changes it.
        """
        with storage_errors("look at", self._file):
            try:
                about = self._file.stat()
            except FileNotFoundError:
                return Demand()
        stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp, self._demand = stamp, self._parse()
        return self._demand

    def _parse(self) -> Demand:
        try:
            record = read_record(self._file)
            return Demand.from_record(record) if record["dataset"] == self._dataset else Demand()
        except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
            return Demand()
