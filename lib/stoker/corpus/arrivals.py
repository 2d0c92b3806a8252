"""What to do about the files a look found: pure decisions of the download watchdog."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stoker.corpus.folder import FileSeen
from stoker.corpus.listing import Listing
from stoker.corpus.receipts import Receipt


@dataclass(frozen=True)
class Look:
    """What one look at the source folder found; pairs are (path, reason), an empty path the folder itself."""

    files: tuple[FileSeen, ...]
    refused: tuple[tuple[str, str], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    missing: bool = False

    def trouble(self, root: str, receipts: int) -> str:
        """Why this look says nothing about the files, in a sentence; empty when it does."""
        if self.missing:
            return f"the source folder {root} is not there; mount it, or correct dataset.source.path"
        if reason := dict(self.unreadable).get(""):
            return f"the source folder {root} cannot be read: {reason}"
        if receipts and not self.files:
            # An unmounted mount point is an empty folder: that is no reason to think the files deleted.
            return f"the source folder {root} is empty but {receipts} files came from it; mount it"
        return ""


@dataclass(frozen=True)
class Watched:
    """A file and since when (monotonic seconds, our own clock) it has looked as it does."""

    file: FileSeen
    since: float


def watch(before: Mapping[str, Watched], found: Collection[FileSeen], now: float) -> dict[str, Watched]:
    """The watched files after another look: a file that changed in any way starts its quiet time anew."""
    after = {}
    for file in sorted(found, key=lambda each: each.path):
        known = before.get(file.path)
        after[file.path] = known if known is not None and known.file == file else Watched(file, now)
    return after


def vouched(file: FileSeen, receipt: Receipt | None) -> bool:
    """Whether the receipt speaks of the file as it is now."""
    return receipt is not None and receipt.etag == file.etag and receipt.state != "disputed"


@dataclass(frozen=True)
class Desk:
    """All that the choice of the next files to hash depends on; times are monotonic seconds."""

    watched: Mapping[str, Watched]
    receipts: Mapping[str, Receipt]
    hashing: Collection[str]
    not_before: Mapping[str, float]
    slots: int
    settle_s: float

    def waiting(self, now: float) -> list[FileSeen]:
        """The settled files without a valid receipt, in listing order."""
        return [
            each.file
            for path, each in self.watched.items()
            if not vouched(each.file, self.receipts.get(path))
            and path not in self.hashing
            and now >= each.since + self.settle_s
        ]

    def next_to_hash(self, now: float) -> list[FileSeen]:
        """The files to start hashing now, within the free slots."""
        free = max(0, self.slots - len(self.hashing))
        return [file for file in self.waiting(now) if now >= self.not_before.get(file.path, now)][:free]

    def next_due(self, now: float) -> float | None:
        """When, after now, a file settles or may be tried again; None when nothing is pending."""
        due = [
            max(each.since + self.settle_s, self.not_before.get(path, now))
            for path, each in self.watched.items()
            if path not in self.hashing and not vouched(each.file, self.receipts.get(path))
        ]
        later = [moment for moment in due if moment > now]
        return min(later) if later else None

    def counts(self, now: float) -> dict[str, int]:
        """How many files are in which state; every state is present, so that a gauge falls back to 0."""
        counts = dict.fromkeys(("settling", "waiting", "hashing", "verified", "disputed"), 0)
        for path, each in self.watched.items():
            receipt = self.receipts.get(path)
            if path in self.hashing:
                counts["hashing"] += 1
            elif vouched(each.file, receipt):
                counts["verified"] += 1
            elif receipt is not None and receipt.state == "disputed":
                counts["disputed"] += 1
            else:
                counts["settling" if now < each.since + self.settle_s else "waiting"] += 1
        return counts

    def listing(self, dataset: str, whole: bool) -> Listing:
        """The listing as this look shows it; `whole` says that the look saw everything there is.

        An empty folder is not complete: its files are yet to come.
        """
        files = tuple((path, each.file.size) for path, each in self.watched.items())
        complete = (
            whole
            and bool(files)
            and all(vouched(each.file, self.receipts.get(path)) for path, each in self.watched.items())
        )
        return Listing(dataset, files, complete, revision="")


def vanished(watched: Mapping[str, Watched], receipts: Mapping[str, Receipt]) -> list[str]:
    """The paths that have a receipt but are no longer in the folder."""
    return [path for path in receipts if path not in watched]
