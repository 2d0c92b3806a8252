"""What the stage-shard loop's handlers ask to be done, and the one place that does it.

Effects are applied in order: a record is durable before the event that speaks of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stoker.corpus.quarantine.directory import Kept, mark
from stoker.corpus.quarantine.move import open_folder
from stoker.corpus.records.demand import Demand, write_demand
from stoker.corpus.records.pin import DatasetPin, write_pin
from stoker.corpus.records.sources import Source, write_source
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.activity import Activity
from stoker.store.files import remove_durably, remove_tree, unlink_durably
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.names import utc_now
from stoker.store.requests import Request, file_request, finish_request
from stokerd.common.alerts import Alerts

if TYPE_CHECKING:
    from stokerd.sharding.state import State, Work


@dataclass(frozen=True)
class Write:
    """Make a source record durable, then believe it."""

    source: Source


@dataclass(frozen=True)
class Forget:
    """Remove a source record for good."""

    source: Source


@dataclass(frozen=True)
class StartOver:
    """Start a source from the beginning, with the content it had or a new one."""

    source: Source
    reason: str
    level: str = "info"
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Event:
    """Record an event."""

    word: str
    level: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Alert:
    """Raise an alert about something that lasts; `about` tells two of the same word apart."""

    word: str
    about: str = ""
    level: str = "warning"
    repeat: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AlertOver:
    """Clear an alert; `tell` is the event that says so."""

    word: str
    about: str = ""
    tell: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Begin:
    """Give a worker its task; `work` is what the loop knows of the job."""

    activity: Activity
    subject: str
    task: Mapping[str, Any]
    work: Work


@dataclass(frozen=True)
class Send:
    """Send a line to the worker of a job."""

    subject: str
    message: Mapping[str, Any]


@dataclass(frozen=True)
class Dispute:
    """Tell the download watchdog that a file's content is not what its receipt says."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Answer:
    """Record a request's outcome and take the request away."""

    request: Request
    outcome: Mapping[str, Any]


@dataclass(frozen=True)
class WritePin:
    """Make the dataset's pin durable, then believe it."""

    pin: DatasetPin


@dataclass(frozen=True)
class SetDemand:
    """Tell the download watchdog what is wanted of the landing."""

    demand: Demand


@dataclass(frozen=True)
class OpenFinding:
    """Write a finding of which nothing is kept but the reason; `quarantined`: with the event of a new one."""

    name: str
    reason: Mapping[str, Any]
    quarantined: bool = False


@dataclass(frozen=True)
class MarkFinding:
    """Add marks to a finding's reason; None takes a mark away."""

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class DropFinding:
    """Remove what is kept of a finding, and its reason too if asked."""

    kept: Kept
    why: str
    reason_too: bool = False


RecordEffect = Write | Forget | StartOver | WritePin | SetDemand
FindingEffect = OpenFinding | MarkFinding | DropFinding
Effect = RecordEffect | FindingEffect | Event | Alert | AlertOver | Begin | Send | Dispute | Answer


def event(word: str, level: str = "info", **fields: Any) -> Event:
    """An event with these fields."""
    return Event(word, level, fields)


class Effects:
    """Applies effects to the state on disk, the state in memory and the workers."""

    def __init__(self, context: DaemonContext, state: State) -> None:
        self._layout, self._events, self._state = context.layout, context.events, state
        self._alerts = Alerts(context.events)

    def apply(self, effects: Iterable[Effect]) -> None:
        """Apply these in order; each is done before the next is asked for.

        Where one fails the handler is closed at once: it may hold a lock, and the wait for a disk is long.
        """
        try:
            for effect in effects:
                self._apply(effect)
        finally:
            if isinstance(effects, Generator):
                effects.close()

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Event():
                self._events.record(effect.word, level=effect.level, **effect.fields)
            case Alert():
                self._raise(effect)
            case AlertOver():
                self._alerts.clear(effect.word, effect.about, tell=effect.tell, **effect.fields)
            case Begin():
                self._state.begin(effect.activity, effect.subject, effect.task, effect.work)
            case Send(subject, message):
                if subject in self._state.pool:  # it may have ended right after it asked
                    self._state.pool[subject].worker.send(message)
            case Dispute():
                args = {"path": effect.path, "sha256": effect.sha256}
                file_request(self._layout, DOWNLOAD_WATCHDOG, "dispute", args)
            case Answer():
                finish_request(self._layout, STAGE_SHARD, effect.request, effect.outcome)
                self._state.records.answered(effect.request)
            case OpenFinding() | MarkFinding() | DropFinding():
                self._write_finding(effect)
            case _:
                self._write_record(effect)

    def _raise(self, alert: Alert) -> None:
        how: dict[str, Any] = {"level": alert.level, "repeat": alert.repeat}
        self._alerts.raise_(alert.word, alert.about, **how, **alert.fields)

    def _write_record(self, effect: RecordEffect) -> None:
        records = self._state.records
        match effect:
            case Write(source):
                write_source(self._layout, source)
                records.put(source)
            case Forget(source):
                unlink_durably(self._layout.source(source.dataset, source.path))
                records.drop(source.path)
            case StartOver(source, reason, level, size, sha256):
                size = source.size if size is None else size
                renewed = source.renewed(size=size, sha256=sha256 or source.sha256, reason=reason)
                write_source(self._layout, renewed)
                records.put(renewed)
                about = {"path": source.path, "was": source.state, "reason": reason}
                self._events.record("source_renewed", level=level, **about)
            case WritePin(pin):
                write_pin(self._layout, pin)
                records.pinning.pin = pin
            case SetDemand(demand):
                write_demand(self._layout, records.dataset, demand)
                records.demand = demand

    def _write_finding(self, effect: FindingEffect) -> None:
        directory = self._layout.quarantine
        match effect:
            case OpenFinding(name, reason, quarantined):
                folder = open_folder(directory, "parquet", name, reason)
                if quarantined:
                    about = {key: value for key, value in reason.items() if key != "sha256"}
                    self._events.record("source_quarantined", level="warning", folder=str(folder), **about)
            case MarkFinding(name, changes):
                mark(directory / name, **changes)
            case DropFinding(kept, why, reason_too):
                size = int((kept.dropping or {}).get("bytes", kept.bytes))
                about = {"kind": kept.kind, "path": kept.path, "folder": kept.name}
                self._events.record("quarantine_dropped", **about, bytes=size, why=why)
                self._state.progress.dropped[kept.kind] += 1
                if reason_too:
                    remove_tree(directory / kept.name)
                else:
                    for thing in kept.things:
                        remove_durably(directory / kept.name / thing)
                    dropped = {"time": utc_now(), "why": why, "bytes": size}
                    mark(directory / kept.name, dropping=None, dropped=dropped)
        self._state.records.quarantine.read_soon()
