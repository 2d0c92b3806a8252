"""What to do about the files a look found: pure decisions of the download watchdog."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from stoker.corpus.records.by_path import by_path
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.source.folder import FileSeen


@dataclass(frozen=True)
class Look:
    """What one look at the source folder found; pairs are (path, reason), an empty path the folder itself.

    `foreign` are some of other clients' unfinished files, of `foreign_in_all`. `polling` says why nobody
    tells of changes until the next look; empty where inotify does.
    """

    files: Mapping[str, Watched]
    refused: tuple[tuple[str, str], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    missing: bool = False
    polling: str = ""
    foreign: tuple[str, ...] = ()
    foreign_in_all: int = 0

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


@dataclass(frozen=True, slots=True)
class Watched:
    """A file and since when (monotonic seconds) it has looked as it does."""

    file: FileSeen
    since: float

    @classmethod
    def first(cls, file: FileSeen, *, now: float, wall_ns: int, settle_s: float) -> Watched:
        """A file at first sight: quiet since its ctime, which nobody can set back; one to come counts as now.

        `since` is no earlier than settling asks for and in tenths of a second: few are to be told apart.
        """
        age_s = max(0.0, (wall_ns - file.ctime_ns) / 1e9)
        if age_s >= settle_s:
            return cls(file, now - settle_s)
        return cls(file, min(now, math.ceil(10 * (now - age_s)) / 10))


def watch(before: Mapping[str, Watched], found: Iterable[Watched], now: float) -> dict[str, Watched]:
    """The watched files after another look: one seen to change begins its quiet time anew, by our clock."""
    known = ((new, before.get(new.file.path, new)) for new in found)
    return by_path(
        (new.file.path, old if old.file == new.file else Watched(new.file, now)) for new, old in known
    )


def file_of(root: str, path: str) -> str:
    """Where a receipt says that a file of the source folder lies."""
    return f"{root.rstrip('/')}/{path}"


@dataclass(frozen=True)
class Desk:
    """All that the choice of the next files to hash depends on; times are monotonic seconds.

    `root` is the source folder: a receipt of a file elsewhere, from before the folder was moved, does not
    count. `only` are the paths to hash and no others, None for all.
    """

    watched: Mapping[str, Watched]
    receipts: Mapping[str, Receipt]
    hashing: Collection[str]
    not_before: Mapping[str, float]
    slots: int
    settle_s: float
    root: str = ""
    only: Collection[str] | None = None

    def vouched(self, file: FileSeen) -> bool:
        """Whether there is a receipt that speaks of the file as it is now, be it that it is rotten."""
        receipt = self.receipts.get(file.path)
        if (
            receipt is None
            or receipt.etag != file.etag
            or (receipt.state == "disputed" and not receipt.rotten)
        ):
            return False
        return not self.root or receipt.file == file_of(self.root, file.path)

    def waiting(self, now: float) -> Iterator[FileSeen]:
        """The settled files without a valid receipt, in listing order."""
        return (each.file for each in self._open() if now >= each.since + self.settle_s)

    def _open(self) -> Iterator[Watched]:
        for path, each in self.watched.items():
            meant = self.only is None or path in self.only
            if meant and path not in self.hashing and not self.vouched(each.file):
                yield each

    def next_to_hash(self, now: float) -> list[FileSeen]:
        """The files to start hashing now, within the free slots."""
        may = (
            each.file
            for each in self._open()
            if now >= max(each.since + self.settle_s, self.not_before.get(each.file.path, now))
        )
        return list(islice(may, self._free))

    @property
    def _free(self) -> int:
        return max(0, self.slots - len(self.hashing))

    def complete(self, whole: bool) -> bool:
        """Whether the listing of these files is complete; `whole` says that the look saw all there is.

        That of an empty folder is not: its files are yet to come.
        """
        return whole and bool(self.watched) and all(self.vouched(each.file) for each in self.watched.values())


class Unproven(dict[str, Watched]):
    """The files that no receipt vouches for; what is asked of all of them is counted by the time since when
    each looks as it does, of which there are few. `bytes` are theirs together."""

    def __init__(self, files: Iterable[tuple[str, Watched]] = ()) -> None:
        super().__init__(files)
        self._since = Counter(each.since for each in self.values())
        self.bytes = sum(each.file.size for each in self.values())

    def drop(self, path: str) -> None:
        """Not this one any more."""
        if (each := self.pop(path, None)) is not None:
            self._since[each.since] -= 1
            self.bytes -= each.file.size

    def settled(self, now: float, settle_s: float) -> int:
        """How many have settled by now."""
        return sum(count for since, count in self._since.items() if now >= since + settle_s)

    def next_settling(self, now: float, settle_s: float) -> float | None:
        """When, after now, a file will have settled."""
        due = (since + settle_s for since, count in self._since.items() if count)
        return min((moment for moment in due if moment > now), default=None)

    def counts(
        self, now: float, settle_s: float, hashing: Collection[str], disputed: Iterable[str]
    ) -> dict[str, int]:
        """How many files are in which state; every state is present, so that a gauge falls back to 0."""
        settled = self.settled(now, settle_s)
        counts = {"settling": len(self) - settled, "waiting": settled}
        counts |= dict.fromkeys(("hashing", "verified", "disputed"), 0)
        busy = [path for path in hashing if path in self]
        others = [path for path in disputed if path in self and path not in hashing]
        for state, paths in (("hashing", busy), ("disputed", others)):
            counts[state] = len(paths)
            for path in paths:
                counts["waiting" if now >= self[path].since + settle_s else "settling"] -= 1
        return counts


def is_rot(receipt: Receipt | None, file: FileSeen, sha256: str) -> bool:
    """Whether the file's content differs from its receipt's although nobody wrote to it: that is no edit."""
    return receipt is not None and receipt.etag == file.etag and receipt.sha256 != sha256


def vanished(watched: Mapping[str, Watched], receipts: Mapping[str, Receipt]) -> list[str]:
    """The paths that have a receipt but are no longer in the folder."""
    return [path for path in receipts if path not in watched]
