"""The demand: which fetched files the stage-shard loop needs no more, and which it misses.

The loop alone writes this record, whole each time; the download watchdog reconciles the landing with it. What
came true, or may not be done, the loop takes out with its next version.
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


def read_demand(layout: StateLayout, dataset: str) -> Demand:
    """The demand; empty where there is none, or a damaged one, which the loop writes again at its start."""
    try:
        record = read_record(layout.demand)
        return Demand.from_record(record) if record["dataset"] == dataset else Demand()
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return Demand()


def demand_reader(layout: StateLayout, dataset: str) -> CachedRecord[Demand]:
    """Reads the demand again only after it changed."""
    return CachedRecord(layout.demand, lambda: read_demand(layout, dataset), Demand())
