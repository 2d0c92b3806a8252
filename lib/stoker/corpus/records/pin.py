"""The dataset's pin: which build and which tokenizer its shard sets are made with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stoker.store.layout import StateLayout
from stoker.store.record import body_of, read_record, values_of, write_record


@dataclass(frozen=True)
class TokenizerPin:
    """The frozen tokenizer: `file` is relative to the state's datasets folder, `eot` the end-of-text id."""

    file: str
    sha256: str
    vocab_size: int
    eot: int


@dataclass(frozen=True)
class DatasetPin:
    """One build of one dataset version; written by the stage-shard loop alone.

    `build` holds every parameter that changes bytes, `asked` what the configuration wanted of the tokenizer,
    `tokenizer_trained_on` the (path, sha256) pairs it was trained on, None for a given one.
    `listing` are the dataset's paths in training order; `complete` says that no more of them will come and
    each has reached its end (a shard set, quarantine, or being another's duplicate); `whole` only that what
    is known of the source holds no other that would be taken. `limit` is what bounded the listing: the
    configured files, rows and tokens that are not None.
    """

    dataset: str
    version: int
    build_id: str
    build: Mapping[str, Any]
    tokenizer: TokenizerPin
    asked: Mapping[str, Any]
    tokenizer_trained_on: tuple[tuple[str, str], ...] | None = None
    listing: tuple[str, ...] = ()
    complete: bool = False
    whole: bool = False
    limit: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DatasetPin:
        """Read one; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
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
        """The record's body."""
        return body_of(self) | {"tokenizer": asdict(self.tokenizer)}


def read_pin(layout: StateLayout, dataset: str) -> DatasetPin | None:
    """The dataset's pin, None before there is one; raises RecordDamaged where it is damaged."""
    try:
        return DatasetPin.from_record(read_record(layout.dataset(dataset)))
    except FileNotFoundError:
        return None


def write_pin(layout: StateLayout, pin: DatasetPin) -> None:
    """Make the pin durable."""
    write_record(layout.dataset(pin.dataset), pin.to_record())
