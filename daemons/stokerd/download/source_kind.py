"""What the download watchdog's loop knows of a source, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.corpus.records.listing_writer import ListingHead
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stokerd.common.files_list import FilesList
from stokerd.download.receipt_store import ReceiptBook
from stokerd.download.status import DownloadBoard


@dataclass(frozen=True)
class Desktop:
    """What every kind of source works with."""

    context: DaemonContext
    crew: WorkerPool[Any]
    patience: Retries
    book: ReceiptBook
    board: DownloadBoard
    files: FilesList


class SourceKind(Protocol):
    """A source: it looks what there is, brings it, and vouches for it.

    `shown` names it for people, without secrets; `trouble` says why it does not get on, empty while it does.
    """

    shown: str
    every_s: float  # between two snapshots of it

    @property
    def listing(self) -> ListingHead | None:
        """What was written of its listing."""

    @property
    def seen(self) -> bool:
        """Whether it was looked at since our start: before that nothing of it is known."""

    @property
    def trouble(self) -> str:
        """In a sentence."""

    def look(self) -> None:
        """Have the source looked at when that is due."""

    def bring(self) -> None:
        """Start whatever may be started now."""

    def keep_listing(self) -> None:
        """Write the listing when it changed."""

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """Take a worker's word."""

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """Take a worker's end."""

    def release(self, path: str, sha256: str, owner: str) -> dict[str, Any]:
        """Remove a file on purpose; `owner` is the path whose shard set stands for it. The outcome."""

    def fetch(self, path: str, sha256: str | None, by: str) -> dict[str, Any]:
        """Bring a file again; the outcome of the request."""

    def counts(self) -> Mapping[str, int]:
        """How many files are in which state."""

    def status(self) -> Mapping[str, Any]:
        """More for the status snapshot."""

    def next_due(self, now: float) -> float:
        """When something falls due, monotonic seconds."""

    def is_drained(self) -> bool:
        """Whether --once has nothing left to do."""

    def farewell(self) -> int:
        """The last line of --once, and the exit code."""


def some(paths: Collection[str], most: int = 20) -> str:
    """Names for a sentence: not more than a reader takes in."""
    shown = ", ".join(sorted(paths)[:most])
    return f"{shown} and {len(paths) - most} more" if len(paths) > most else shown
