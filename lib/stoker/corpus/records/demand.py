"""The demand: which fetched files the stage-shard loop no longer needs, and which files it misses.

Only the loop writes this record, always as a whole; the download watchdog reconciles the landing with it. The
loop's next version leaves out every demand that was met or that the watchdog may not meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.corpus.records.cached_record import CachedRecord
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, read_record, write_record


@dataclass(frozen=True)
class Unneeded:
    """A file that the watchdog is to remove from the landing."""

    sha256: str  # the file's content
    owner: str  # the path whose shard set has that content: another path than the file's for a duplicate


@dataclass(frozen=True)
class Demand:
    unneeded: Mapping[str, Unneeded] = field(default_factory=dict)  # by path
    missed: Mapping[str, str] = field(default_factory=dict)  # sha256 of the content to fetch again, by path

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Demand:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        unneeded = {str(path): Unneeded(str(sha), str(owner)) for path, sha, owner in record["unneeded"]}
        return cls(unneeded, {str(path): str(sha256) for path, sha256 in record["missed"]})

    def to_record(self, dataset: str) -> dict[str, Any]:
        return {
            "v": 1,
            "dataset": dataset,
            "unneeded": [[path, one.sha256, one.owner] for path, one in sorted(self.unneeded.items())],
            "missed": [list(one) for one in sorted(self.missed.items())],
        }


def write_demand(layout: StateLayout, dataset: str, demand: Demand) -> None:
    """Writes the demand durably."""
    write_record(layout.demand, demand.to_record(dataset))


def read_demand(layout: StateLayout, dataset: str) -> Demand:
    """Returns the demand; an empty demand where the record is missing or damaged.

    The loop writes a damaged record again at its start.
    """
    try:
        record = read_record(layout.demand)
        return Demand.from_record(record) if record["dataset"] == dataset else Demand()
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return Demand()


def demand_reader(layout: StateLayout, dataset: str) -> CachedRecord[Demand]:
    """Returns a reader that parses the demand only after its file changed."""
    return CachedRecord(layout.demand, lambda: read_demand(layout, dataset), Demand())
