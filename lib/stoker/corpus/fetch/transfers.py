"""The transfers under way, from what the fetch worker says of them: bytes, rates, and which stands still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.observe.rate import Pace

FILE_OVER_S, ALL_OVER_S = 30.0, 60.0


@dataclass
class Transfer:
    """One file with the worker: `bytes` of it are durable, `received` came over the network so far.

    `in_hand`: it is being worked on, and got on at `moved_at` (monotonic seconds) for the last time. `why`:
    what the last try met, empty unless it waits for the next one, at `due_at`.
    """

    path: str
    size: int | None
    bytes: int = 0
    received: int = 0
    moved_at: float = 0.0
    in_hand: bool = False
    why: str = ""
    due_at: float = 0.0
    pace: Pace = field(default_factory=lambda: Pace(FILE_OVER_S))

    def shown(self) -> dict[str, Any]:
        """For the status snapshot."""
        rate = round(self.pace.per_second)
        return {"path": self.path, "bytes": self.bytes, "size": self.size, "bytes_per_second": rate}


@dataclass(frozen=True)
class HeldUp:
    """So many files wait; `why` is what the one met that is tried first, at `due_at`, monotonic seconds."""

    files: int
    why: str
    due_at: float


class Transfers:
    """Those of one fetch worker; the totals go on over many."""

    def __init__(self) -> None:
        self.durable = self.received = 0  # bytes since the start
        self._pace = Pace(ALL_OVER_S)
        self._files: dict[str, Transfer] = {}

    def add(self, path: str, size: int | None) -> None:
        """A file was given to the worker."""
        self._files[path] = Transfer(path, size)

    def hear(self, message: Mapping[str, Any], now: float) -> None:
        """What the worker says of a file."""
        file = self._files.get(str(message.get("path")))
        if file is None:
            return
        kind = message["kind"]
        if kind in ("start", "progress", "hashing", "rotten", "anew", "mismatch"):
            file.in_hand, file.moved_at, file.why = True, now, ""
        elif kind == "retry":
            file.in_hand, file.why = False, str(message.get("reason", message["class"]))
            file.due_at = now + float(message["wait_s"])
        if kind == "start":
            file.bytes = int(message["offset"])
        elif kind == "progress":
            self._moved(file, int(message["bytes"]), int(message["received"]))
        elif kind == "done":
            self._moved(
                file, int(message["size"]) if message["fetched"] else file.bytes, int(message["fetched"])
            )
        if kind in ("start", "progress"):
            file.pace.note(file.bytes, now)

    def _moved(self, file: Transfer, durable: int, received: int) -> None:
        self.durable += max(0, durable - file.bytes)
        self.received += max(0, received - file.received)
        file.bytes, file.received = durable, received

    def end(self, path: str) -> None:
        """The worker has done with a file."""
        self._files.pop(path, None)

    def forget(self) -> None:
        """The worker is gone."""
        self._files.clear()

    def __len__(self) -> int:
        return len(self._files)

    def under_way_bytes(self) -> int:
        """Durable bytes of files that are not whole yet."""
        return sum(file.bytes for file in self._files.values())

    def to_come_bytes(self) -> int:
        """What the files that are being worked on still need, as far as their sizes are known."""
        return sum(max(0, (file.size or 0) - file.bytes) for file in self._files.values() if file.in_hand)

    def in_hand(self) -> int:
        """How many files are being worked on."""
        return sum(1 for file in self._files.values() if file.in_hand)

    def held_up(self) -> HeldUp | None:
        """That nothing is being worked on, because files wait for their next try; None while something is."""
        waiting = [file for file in self._files.values() if file.why]
        if not waiting or self.in_hand():
            return None
        first = min(waiting, key=lambda file: file.due_at)
        return HeldUp(len(self._files), first.why, first.due_at)

    def standing(self, now: float, limit_s: float) -> str | None:
        """A file that is being worked on and has not got on for so long."""
        return next(
            (file.path for file in self._files.values() if file.in_hand and now - file.moved_at > limit_s),
            None,
        )

    def note(self, now: float) -> None:
        """Measure the rate of all together."""
        self._pace.note(self.durable, now)

    @property
    def rate(self) -> float:
        """Durable bytes a second over the last minute; 0 while nothing is with the worker."""
        return self._pace.per_second if self._files else 0.0

    def left_s(self, left: int) -> float | None:
        """How long so many bytes will take."""
        return self._pace.left_s(left)

    def shown(self, most: int) -> list[dict[str, Any]]:
        """At most so many files, those in hand."""
        return [file.shown() for file in self._files.values() if file.in_hand][:most]
