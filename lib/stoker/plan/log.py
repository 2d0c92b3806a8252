"""The plan log: which shard sets are trained on, in which order; the supervisor alone appends to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.log import ChainedLog, read_log

PERMUTATION = "feistel8-v1"
DATA_EXHAUSTED = "data_exhausted"
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Segment:
    """Shard sets whose train streams, concatenated, are visited in one keyed permutation of windows."""

    n: int
    epoch: int
    sets: tuple[tuple[str, str], ...]  # (set key, sha256 of its manifest.json)
    seq_len: int
    windows: int
    tail_tokens: int
    key: str
    permutation: str = PERMUTATION

    def body(self) -> dict[str, Any]:
        return {
            "v": 1,
            "n": self.n,
            "epoch": self.epoch,
            "sets": [list(pair) for pair in self.sets],
            "seq_len": self.seq_len,
            "windows": self.windows,
            "tail_tokens": self.tail_tokens,
            "key": self.key,
            "permutation": self.permutation,
        }


@dataclass(frozen=True)
class Passed:
    """A listed source that gives no shard set to the plan, and why; it has no windows."""

    n: int
    path: str
    reason: str

    def body(self) -> dict[str, Any]:
        return {"v": 1, "n": self.n, "passed": [self.path, self.reason]}


@dataclass(frozen=True)
class End:
    """No more data will come: once the entries before it are used up the run is over; it has no windows.

    Only a last entry counts: a plan that goes on after one (the cap on epochs was raised) has not ended.
    """

    n: int
    reason: str = DATA_EXHAUSTED

    def body(self) -> dict[str, Any]:
        return {"v": 1, "n": self.n, "end": self.reason}


Entry = Segment | Passed | End


@dataclass(frozen=True)
class Plan:
    """The plan as read: entry i has n = i; `hashes[i]` is the chain hash of its line, `head` the last one."""

    entries: tuple[Entry, ...]
    head: str
    hashes: tuple[str, ...] = ()

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Windows before each entry, and as last element all windows of the plan."""
        return tuple(accumulate((windows_of(entry) for entry in self.entries), initial=0))

    @property
    def windows(self) -> int:
        return self.starts[-1]

    @property
    def ended(self) -> bool:
        return bool(self.entries) and isinstance(self.entries[-1], End)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Segment))


def windows_of(entry: Entry) -> int:
    """Windows of an entry; entries that are no segment have none."""
    return entry.windows if isinstance(entry, Segment) else 0


def segment_key(seed: int, n: int) -> str:
    """The permutation key of entry n: sha256 of the canonical JSON of [run seed, n], in hex."""
    return hashlib.sha256(canonical_json([seed, n])).hexdigest()


def read_plan(path: Path) -> Plan:
    """The plan in a file (a missing file is the empty plan); a torn last line is not part of it yet.

    Raises DataError naming the line where the log is damaged or an entry makes no sense.
    """
    reading = read_log(path)
    if reading.damage:
        raise DataError(
            f"{path}: {reading.damage[0]}; the plan is history and is not repaired by guessing: "
            "put back the copy in the newest checkpoint, or restore the file"
        )
    entries: list[Entry] = []
    for number, body in enumerate(reading.entries):
        try:
            entry = parse_entry(body)
        except ValueError as problem:
            raise DataError(f"{path}: entry {number}: {problem}") from problem
        if entry.n != number:
            raise DataError(f"{path}: entry {number} has n={entry.n}: a line is missing or doubled")
        entries.append(entry)
    return Plan(tuple(entries), reading.head, tuple(reading.hashes))


def parse_entry(body: Mapping[str, Any]) -> Entry:
    """One line's body as an entry; raises ValueError saying which field is wrong."""
    if body.get("v") != 1:
        raise ValueError(f"format version {body.get('v')!r} is not known here")
    n = _count(body, "n")
    if "passed" in body:
        return Passed(n, *_words(body["passed"]))
    if "end" in body:
        if not isinstance(body["end"], str):
            raise ValueError("end is not a reason")
        return End(n, body["end"])
    return Segment(
        n=n,
        epoch=_count(body, "epoch"),
        sets=_sets(body.get("sets")),
        seq_len=_count(body, "seq_len", least=1),
        windows=_count(body, "windows"),
        tail_tokens=_count(body, "tail_tokens"),
        key=_hex64(body.get("key"), "key"),
        permutation=_permutation(body.get("permutation")),
    )


class PlanWriter:
    """The one writer of a plan log: takes entries whose n continues it, durable when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._plan = read_plan(path)
        self._log = ChainedLog(path)

    @property
    def plan(self) -> Plan:
        return self._plan

    def append(self, entry: Entry) -> Plan:
        """Append one entry and return the plan with it; raises DataError when its n is not the next."""
        if entry.n != len(self._plan.entries):
            raise DataError(f"plan entry n={entry.n} cannot follow {len(self._plan.entries)} entries")
        digest = self._log.append(entry.body())
        self._plan = Plan((*self._plan.entries, entry), digest, (*self._plan.hashes, digest))
        return self._plan


def _count(body: Mapping[str, Any], field: str, *, least: int = 0) -> int:
    value = body.get(field)
    if type(value) is not int or value < least:
        raise ValueError(f"{field}={value!r} is not a whole number of at least {least}")
    return value


def _words(value: object) -> tuple[str, str]:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(word, str) for word in value):
        return value[0], value[1]
    raise ValueError("passed is not [path, reason]")


def _hex64(value: object, what: str) -> str:
    if not (isinstance(value, str) and _HEX64.fullmatch(value)):
        raise ValueError(f"{what}={value!r} is not a sha256 in hex")
    return value


def _sets(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("sets is not a list of [key, manifest sha256]")
    pairs: list[tuple[str, str]] = []
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2):
            raise ValueError("sets is not a list of [key, manifest sha256]")
        pairs.append((_hex64(pair[0], "set key"), _hex64(pair[1], "manifest sha256")))
    return tuple(pairs)


def _permutation(value: object) -> str:
    if value != PERMUTATION:
        raise ValueError(f"permutation {value!r} is not known here; this version knows {PERMUTATION}")
    return PERMUTATION
