"""The effects that the stage-shard loop's handlers request: a closed set, which `apply.py` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.corpus.quarantine.directory import QuarantineEntry
from stoker.corpus.records.dataset import DatasetPin
from stoker.corpus.records.receipts import Demand
from stoker.corpus.records.sources import Source
from stoker.kit.workers.pool import Activity
from stoker.store.requests import Request
from stokerd.sharding.work import Work

# Records


@dataclass(frozen=True)
class Write:
    """Writes a source record durably, then keeps it in memory."""

    source: Source


@dataclass(frozen=True)
class Forget:
    """Removes a source record for good."""

    source: Source


@dataclass(frozen=True)
class StartOver:
    """Starts a source from the beginning, with its content or new content."""

    source: Source
    reason: str
    level: str = ""  # "": the register's
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class WritePin:
    """Writes the dataset's pin durably, then keeps it in memory."""

    pin: DatasetPin


@dataclass(frozen=True)
class SetDemand:
    """Writes the demand on a dataset's landing for the download watchdog."""

    dataset: str
    demand: Demand


@dataclass(frozen=True)
class OpenFinding:
    """Writes a finding that keeps a reason but no files, with its event."""

    name: str
    reason: Mapping[str, Any]


@dataclass(frozen=True)
class MarkFinding:
    """Adds fields to a finding's reason; None removes a field."""

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class DropFinding:
    """Removes the quarantined files of a finding, and its reason too if requested."""

    kept: QuarantineEntry
    why: str
    reason_too: bool = False


Change = Write | Forget | StartOver | WritePin | SetDemand | OpenFinding | MarkFinding | DropFinding

# Events, jobs and requests


@dataclass(frozen=True)
class Event:
    word: str
    fields: Mapping[str, Any]


def event(word: str, **fields: Any) -> Event:
    return Event(word, fields)


@dataclass(frozen=True)
class Alert:
    """Raises an alert about a lasting condition; `about` distinguishes two alerts of the same word."""

    word: str
    about: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AlertOver:
    """Clears an alert; `tell` is the event recorded with that."""

    word: str
    about: str = ""
    tell: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """Gives a worker its task for a dataset; `work` is the loop's record of the job."""

    dataset: str
    activity: Activity
    subject: str
    task: Mapping[str, Any]
    work: Work


@dataclass(frozen=True)
class Send:
    """Sends a line to the worker of a job."""

    subject: str
    message: Mapping[str, Any]


@dataclass(frozen=True)
class Dispute:
    """Reports to the download watchdog that a file's content differs from its receipt."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Answer:
    """Records a request's outcome and removes the request."""

    request: Request
    outcome: Mapping[str, Any]


Effect = Change | Event | Alert | AlertOver | Begin | Send | Dispute | Answer
