"""Effects that the stage-shard loop's handlers request, and the `Effects` object that applies them.

Effects are a closed set, applied in order: a record is durable before its event is recorded, and before the
loop uses the record.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stoker.corpus.quarantine.directory import Kept, mark, open_folder
from stoker.corpus.records.dataset import DatasetPin, write_pin
from stoker.corpus.records.receipts import Demand, write_demand
from stoker.corpus.records.sources import Source, write_source
from stoker.kit.daemon import DaemonContext
from stoker.kit.events import Alerts
from stoker.kit.workers.pool import Activity
from stoker.store.files import remove_durably, remove_tree, unlink_durably
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.record import utc_now
from stoker.store.requests import Request, file_request, finish_request

if TYPE_CHECKING:
    from stokerd.sharding.activities.base import Work
    from stokerd.sharding.state import State


class Effect(Protocol):
    """A requested change."""

    def apply(self, to: Effects) -> None:
        """Makes the change."""


class Effects:
    """Applies effects to the state on disk, the state in memory and the workers."""

    def __init__(self, context: DaemonContext, state: State) -> None:
        self.layout, self.events, self.state = context.layout, context.events, state
        self.alerts = Alerts(context.events)

    def apply(self, effects: Iterable[Effect]) -> None:
        """Applies these in order; each is applied before the handler computes the next.

        When an effect fails the handler is closed at once: it may hold a lock during a long disk wait.
        """
        try:
            for effect in effects:
                effect.apply(self)
        finally:
            if isinstance(effects, Generator):
                effects.close()


# Records


@dataclass(frozen=True)
class Write:
    """Writes a source record durably, then keeps it in memory."""

    source: Source

    def apply(self, to: Effects) -> None:
        write_source(to.layout, self.source)
        to.state.records.put(self.source)


@dataclass(frozen=True)
class Forget:
    """Removes a source record for good."""

    source: Source

    def apply(self, to: Effects) -> None:
        unlink_durably(to.layout.source(self.source.dataset, self.source.path))
        to.state.records.drop(self.source.path)


@dataclass(frozen=True)
class StartOver:
    """Starts a source from the beginning, with its content or new content."""

    source: Source
    reason: str
    level: str = ""  # "": the register's
    size: int | None = None
    sha256: str | None = None

    def apply(self, to: Effects) -> None:
        source, reason = self.source, self.reason
        size = source.size if self.size is None else self.size
        renewed = source.renewed(size=size, sha256=self.sha256 or source.sha256, reason=reason)
        Write(renewed).apply(to)
        about = {"path": source.path, "was": source.state, "reason": reason}
        to.events.record("source_renewed", level=self.level, **about)


@dataclass(frozen=True)
class WritePin:
    """Writes the dataset's pin durably, then keeps it in memory."""

    pin: DatasetPin

    def apply(self, to: Effects) -> None:
        write_pin(to.layout, self.pin)
        to.state.records.pinning.pin = self.pin


@dataclass(frozen=True)
class SetDemand:
    """Writes the demand on the landing for the download watchdog."""

    demand: Demand

    def apply(self, to: Effects) -> None:
        records = to.state.records
        write_demand(to.layout, records.dataset, self.demand)
        records.demand = self.demand


# Events


@dataclass(frozen=True)
class Event:
    word: str
    fields: Mapping[str, Any]

    def apply(self, to: Effects) -> None:
        to.events.record(self.word, **self.fields)


def event(word: str, **fields: Any) -> Event:
    return Event(word, fields)


@dataclass(frozen=True)
class Alert:
    """Raises an alert about a lasting condition; `about` distinguishes two alerts of the same word."""

    word: str
    about: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, to: Effects) -> None:
        to.alerts.raise_(self.word, self.about, **self.fields)


@dataclass(frozen=True)
class AlertOver:
    """Clears an alert; `tell` is the event recorded with that."""

    word: str
    about: str = ""
    tell: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, to: Effects) -> None:
        to.alerts.clear(self.word, self.about, tell=self.tell, **self.fields)


# Jobs and requests


@dataclass(frozen=True)
class Begin:
    """Gives a worker its task; `work` is the loop's record of the job."""

    activity: Activity
    subject: str
    task: Mapping[str, Any]
    work: Work

    def apply(self, to: Effects) -> None:
        self.work.memory = to.state.pauses.memory.look_now()
        to.state.pool.start(self.activity, self.subject, self.task, self.work)


@dataclass(frozen=True)
class Send:
    """Sends a line to the worker of a job."""

    subject: str
    message: Mapping[str, Any]

    def apply(self, to: Effects) -> None:
        if self.subject in to.state.pool:  # the worker may have ended right after its question
            to.state.pool[self.subject].worker.send(self.message)


@dataclass(frozen=True)
class Dispute:
    """Reports to the download watchdog that a file's content differs from its receipt."""

    path: str
    sha256: str

    def apply(self, to: Effects) -> None:
        file_request(to.layout, DOWNLOAD_WATCHDOG, "dispute", {"path": self.path, "sha256": self.sha256})


@dataclass(frozen=True)
class Answer:
    """Records a request's outcome and removes the request."""

    request: Request
    outcome: Mapping[str, Any]

    def apply(self, to: Effects) -> None:
        finish_request(to.layout, STAGE_SHARD, self.request, self.outcome)
        to.state.records.answered(self.request)


# Findings


@dataclass(frozen=True)
class OpenFinding:
    """Writes a finding that keeps a reason but no files, with its event."""

    name: str
    reason: Mapping[str, Any]

    def apply(self, to: Effects) -> None:
        folder = open_folder(to.layout.quarantine, "parquet", self.name, self.reason)
        about = {key: value for key, value in self.reason.items() if key != "sha256"}
        to.events.record("source_quarantined", folder=str(folder), **about)
        to.state.records.quarantine.read_soon()


@dataclass(frozen=True)
class MarkFinding:
    """Adds fields to a finding's reason; None removes a field."""

    name: str
    changes: Mapping[str, Any]

    def apply(self, to: Effects) -> None:
        mark(to.layout.quarantine / self.name, **self.changes)
        to.state.records.quarantine.read_soon()


@dataclass(frozen=True)
class DropFinding:
    """Removes the quarantined files of a finding, and its reason too if requested."""

    kept: Kept
    why: str
    reason_too: bool = False

    def apply(self, to: Effects) -> None:
        kept, folder = self.kept, to.layout.quarantine / self.kept.name
        size = int((kept.dropping or {}).get("bytes", kept.bytes))
        about = {"kind": kept.kind, "path": kept.path, "folder": kept.name}
        to.events.record("quarantine_dropped", **about, bytes=size, why=self.why)
        to.state.progress.dropped[kept.kind] += 1
        if self.reason_too:
            remove_tree(folder)
        else:
            for thing in kept.things:
                remove_durably(folder / thing)
            mark(folder, dropping=None, dropped={"time": utc_now(), "why": self.why, "bytes": size})
        to.state.records.quarantine.read_soon()
