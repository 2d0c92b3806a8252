"""The dataset's pin: the build and the tokenizer that all its shard sets are made with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stoker.store.layout import StateLayout
from stoker.store.record import body_of, read_record, values_of, write_record


@dataclass(frozen=True)
class TokenizerPin:
    """The frozen tokenizer."""

    file: str  # relative to the state's datasets directory
    sha256: str
    vocab_size: int
    eot: int  # the end-of-text id


@dataclass(frozen=True)
class DatasetPin:
    """One build of one dataset version; only the stage-shard loop writes it."""

    dataset: str
    version: int
    build_id: str
    build: Mapping[str, Any]  # every parameter that changes bytes
    tokenizer: TokenizerPin
    asked: Mapping[str, Any]  # the configuration's tokenizer settings
    # (path, sha256); None for a given tokenizer
    tokenizer_trained_on: tuple[tuple[str, str], ...] | None = None
    listing: tuple[str, ...] = ()  # the dataset's paths in training order
    # No more paths will be added, and the source of each is terminal: published, quarantined or a duplicate.
    complete: bool = False
    whole: bool = False  # the known files of the source include no further file that the limit would take
    limit: Mapping[str, int] = field(default_factory=dict)  # the configured limits of files, rows and tokens

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DatasetPin:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        trained_on = record["tokenizer_trained_on"]
        return cls(
            **{"whole": record["complete"]}
            | values_of(cls, record)
            | {
                "tokenizer": TokenizerPin(**record["tokenizer"]),
                "tokenizer_trained_on": trained_on and tuple((path, sha256) for path, sha256 in trained_on),
                "listing": tuple(map(sys.intern, record["listing"])),
            }
        )

    def to_record(self) -> dict[str, Any]:
        return body_of(self) | {"tokenizer": asdict(self.tokenizer)}


def read_pin(layout: StateLayout, dataset: str) -> DatasetPin | None:
    """Returns the dataset's pin, None where there is none; raises RecordDamaged where it is damaged."""
    try:
        return DatasetPin.from_record(read_record(layout.dataset(dataset)))
    except FileNotFoundError:
        return None


def write_pin(layout: StateLayout, pin: DatasetPin) -> None:
    """Writes the pin durably."""
    write_record(layout.dataset(pin.dataset), pin.to_record())
