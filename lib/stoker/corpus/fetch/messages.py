"""Messages between the fetch worker and its daemon: the task, the worker's reports, and the transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.source.remote_listing import access_to
from stoker.observe.progress import Rate

COMMIT_S = 2.0
BACKOFF_S = (1.0, 60.0)
FILE_OVER_S, ALL_OVER_S = 30.0, 60.0


def fetch_task(pipeline: Pipeline, *, expected: bool) -> dict[str, Any]:
    """Returns the worker's task; `expected`: files landed before, so the landing's directory must exist."""
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
    """One message; each kind has the fields in the worker's module docstring, with `cause` for its class."""

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
    """Returns the message of a worker's line; raises TypeError for an unknown field."""
    fields = {"cause" if name == "class" else name: value for name, value in message.items()}
    return Said(**{**fields, "foreign": tuple(message.get("foreign", ()))})


@dataclass
class Transfer:
    """One file with a worker: `bytes` of it are done, `received` came over the network so far.

    `wish` is the request, None for a file of a folder. `in_hand`: a thread works on it. `why`: the failure of
    the last try while it waits for the next one at `due_at` (monotonic seconds), else empty.
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
    """The transfers in progress by path; the totals continue across workers."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = self.received = 0  # bytes since the start
        self._pace = Rate(ALL_OVER_S)

    def add(self, path: str, size: int | None, wish: RemoteFile | None) -> None:
        self[path] = Transfer(path, size, wish)

    def hear(self, said: Said, now: float) -> None:
        """Updates a transfer by the fetch worker's message."""
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
        """Records a file's done bytes, and how many of them came over the network."""
        file = self[path]
        self.durable += max(0, done - file.bytes)
        self.received += max(0, received - file.received)
        file.bytes, file.received, file.in_hand = done, received, True

    def end(self, path: str) -> RemoteFile | None:
        """Removes a finished transfer; returns its request, None without one."""
        file = self.pop(path, None)
        return None if file is None else file.wish

    def to_come_bytes(self) -> int:
        """Returns the bytes that files in work still need, as far as their sizes are known."""
        return sum(max(0, (file.size or 0) - file.bytes) for file in self.values() if file.in_hand)

    def in_hand(self) -> int:
        """Returns the number of files in work."""
        return sum(1 for file in self.values() if file.in_hand)

    def held_up(self) -> Transfer | None:
        """Returns the file with the earliest next try when all files wait; None while a file is in work."""
        waiting = [file for file in self.values() if file.why]
        if not waiting or self.in_hand():
            return None
        return min(waiting, key=lambda file: file.due_at)

    def how_far(self, whole: int, left: int, now: float) -> Mapping[str, Any]:
        """Returns the progress for the status: done bytes of `whole`, rate over a minute, time left.

        `left` are the bytes still missing, including those of files in progress.
        """
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
        """Returns at most so many files in work for the status."""
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
