"""What passes between the fetch worker and its daemon: the task, what the worker says, and the files under
way by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.source.remote_listing import access_to
from stoker.observe.rate import Rate

COMMIT_S = 2.0
BACKOFF_S = (1.0, 60.0)
FILE_OVER_S, ALL_OVER_S = 30.0, 60.0


def fetch_task(pipeline: Pipeline, *, expected: bool) -> dict[str, Any]:
    """The worker's task; `expected`: files landed before, so that their directory must be there."""
    download, quarantine = pipeline.download, pipeline.quarantine
    third_s = min(60.0, download.stall / 3)
    return {
        "root": str(pipeline.source_root),
        "dataset": pipeline.dataset.name,
        "expected": expected,
        **{name: getattr(download, name) for name in ("files_at_once", "bandwidth", "min_rate", "attempts")},
        "window_s": third_s,
        "connect_s": min(20.0, download.stall),
        "read_s": third_s,
        "head_s": min(120.0, download.stall / 2),
        "commit_s": COMMIT_S,
        "backoff": BACKOFF_S,
        "floor": pipeline.stage.free_floor,
        "keep_files": quarantine.keep_files,
        "keep_bytes": quarantine.keep_bytes,
        **access_to(pipeline.dataset.source),
        "owner": pipeline.owner,
    }


@dataclass(frozen=True)
class Said:
    """One message; a kind has the fields that the worker's module names, `cause` for its class."""

    kind: str
    path: str = ""
    bytes: int = 0
    received: int = 0
    offset: int = 0
    dropped: int = 0
    # retry, failed, anew, not_removed
    cause: str = ""
    reason: str = ""
    status: int | None = None
    wait_s: float = 0.0
    # done
    how: str = ""
    size: int = 0
    sha256: str = ""
    cached: bool = False
    unproven: bool = False
    fetched: int = 0
    # mismatch
    expected: str = ""
    found: str = ""
    count: int = 0
    evidence: str = ""
    landed: bool = False
    # ready
    foreign: tuple[str, ...] = ()
    device: int = 0


def parse(message: Mapping[str, Any]) -> Said:
    """The message of a worker's line; TypeError for a field that it never has."""
    fields = {"cause" if name == "class" else name: value for name, value in message.items()}
    return Said(**{**fields, "foreign": tuple(message.get("foreign", ()))})


@dataclass
class Transfer:
    """One file with a worker: `bytes` of it are done, `received` came over the network so far.

    `wish` is what was asked for, None for a file of a folder. `in_hand`: it is being worked on. `why`: what
    the last try met, empty unless it waits for the next one, at `due_at` (monotonic seconds).
    """

    path: str
    size: int | None
    wish: RemoteFile | None
    bytes: int = 0
    received: int = 0
    in_hand: bool = False
    why: str = ""
    due_at: float = 0.0
    pace: Rate = field(default_factory=lambda: Rate(FILE_OVER_S))


class Transfers(dict[str, Transfer]):
    """Those under way by path; the totals go on over many workers."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = self.received = 0  # bytes since the start
        self._pace = Rate(ALL_OVER_S)

    def add(self, path: str, size: int | None, wish: RemoteFile | None) -> None:
        """A file was given to a worker."""
        self[path] = Transfer(path, size, wish)

    def hear(self, said: Said, now: float) -> None:
        """What the fetch worker says of a file."""
        file = self.get(said.path)
        if file is None:
            return
        match said.kind:
            case "start":
                file.bytes = said.offset
            case "progress":
                self.moved(file.path, said.bytes, said.received)
            case "done":
                self.moved(file.path, said.size if said.fetched else file.bytes, said.fetched)
            case "retry":
                file.why, file.due_at = said.reason, now + said.wait_s
        file.in_hand = said.kind != "retry"
        file.why = "" if file.in_hand else file.why
        if said.kind in ("start", "progress"):
            file.pace.note(file.bytes, now)

    def moved(self, path: str, done: int, received: int) -> None:
        """So many bytes of a file are done, so many of them came over the network."""
        file = self[path]
        self.durable += max(0, done - file.bytes)
        self.received += max(0, received - file.received)
        file.bytes, file.received, file.in_hand = done, received, True

    def end(self, path: str) -> RemoteFile | None:
        """The worker has done with a file; what was asked for, None where nothing was."""
        file = self.pop(path, None)
        return None if file is None else file.wish

    def to_come_bytes(self) -> int:
        """What the files that are being worked on still need, as far as their sizes are known."""
        return sum(max(0, (file.size or 0) - file.bytes) for file in self.values() if file.in_hand)

    def in_hand(self) -> int:
        """How many files are being worked on."""
        return sum(1 for file in self.values() if file.in_hand)

    def held_up(self) -> Transfer | None:
        """The file that is tried first where all wait for their next try; None while one is worked on."""
        waiting = [file for file in self.values() if file.why]
        if not waiting or self.in_hand():
            return None
        return min(waiting, key=lambda file: file.due_at)

    def how_far(self, whole: int, left: int, now: float) -> Mapping[str, Any]:
        """For the status: of `whole` bytes so many are done, `left` of which some are under way; the rate
        over the last minute, and the time left."""
        self._pace.note(self.durable, now)
        left = max(0, left - sum(file.bytes for file in self.values()))
        left_s = self._pace.left_s(left) if self else None
        return {
            "bytes_of": whole,
            "bytes_done": max(0, whole - left),
            "rate_bytes_per_second": round(self._pace.per_second) if self else 0,
            "eta_s": None if left_s is None or not left else round(left_s),
        }

    def shown(self, most: int) -> list[dict[str, Any]]:
        """For the status: at most so many files, those in hand."""
        return [
            {
                "path": path,
                "bytes": file.bytes,
                "size": file.size,
                "bytes_per_second": round(file.pace.per_second),
            }
            for path, file in self.items()
            if file.in_hand
        ][:most]
