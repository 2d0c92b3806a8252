"""The plan log: the order in which shard sets are trained on. Only the supervisor appends to it."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from stoker.store.errors import DataError, UnknownFormat
from stoker.store.files import canonical_json
from stoker.store.log import ChainedLog, LogScan, restore_lines
from stoker.store.record import require_version

PERMUTATION = "feistel8-v1"
DATA_EXHAUSTED = "data_exhausted"
VERSIONS = (1, 2)  # of a line
_HEX64 = re.compile(r"[0-9a-f]{64}")

SetPair = tuple[str, str]  # set key, sha256 of its manifest.json


@dataclass(frozen=True, slots=True)
class Segment:
    """Shard sets whose concatenated train streams are trained on in one keyed permutation of windows.

    In a line of version 2, which names the dataset, it is a part of the dataset's stream: windows from token
    `first` of the first set on, and no tail, for the next part begins where the last window ended.
    Raises ValueError unless each of `sets` is two sha256 in hex.
    """

    n: int
    epoch: int
    sets: Sequence[SetPair]
    seq_len: int
    windows: int
    tail_tokens: int
    key: str
    permutation: str = PERMUTATION
    run_id: str = ""  # of the plan's run; old lines have none
    dataset: str = ""
    first: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", tuple(map(_pair, self.sets)))

    def body(self) -> dict[str, Any]:
        body = {"v": 1, **asdict(self)}
        if not self.run_id:
            del body["run_id"]  # an old line keeps its bytes and its hash
        part = {name: body.pop(name) for name in ("dataset", "first")}
        if self.dataset:
            del body["tail_tokens"]
            part |= {"epoch": body.pop("epoch"), "sets": body.pop("sets"), "windows": self.windows}
            body |= {"v": 2, "parts": [part]}
        return body

    @property
    def stop(self) -> int:
        """The token of the stream that the next part begins with: the last target of the last window."""
        return self.first + self.windows * self.seq_len

    def misfit(self, tokens: Sequence[int]) -> str:
        """Returns how its counts contradict its sets, which have so many `tokens` each; "" if they agree."""
        total, its = sum(tokens), f"{self.windows} windows"
        if self.dataset:  # they lie inside the sets, and read of each
            fits = all(tokens) and self.first < tokens[0] and total - tokens[-1] <= self.stop < total
            its += (
                f" from token {self.first} on; its shard sets have {', '.join(map(str, tokens))} train tokens"
            )
            return "" if fits else its
        windows = max(0, (total - 1) // self.seq_len)
        tail = total - windows * self.seq_len
        its += f" and {self.tail_tokens} tail tokens; its shard sets have {total} train tokens, which give"
        return "" if (windows, tail) == (self.windows, self.tail_tokens) else f"{its} {windows} and {tail}"


@dataclass(frozen=True)
class Passed:
    """A listed source without a shard set in the plan, and the reason; the entry has no windows."""

    n: int
    path: str
    reason: str
    dataset: str = ""  # in a line of version 2

    def body(self) -> dict[str, Any]:
        body = {"v": 1, "n": self.n, "passed": [self.path, self.reason]}
        return body | {"v": 2, "dataset": self.dataset} if self.dataset else body


@dataclass(frozen=True)
class Closed:
    """The end of an epoch that has parts: none follows, and the tail behind the last one has no targets."""

    n: int
    dataset: str
    epoch: int
    tail_tokens: int

    def body(self) -> dict[str, Any]:
        closed = [self.dataset, self.epoch]
        return {"v": 2, "n": self.n, "closed": closed, "tail_tokens": self.tail_tokens}


@dataclass(frozen=True)
class End:
    """The end of the data: the run is over once the entries before are used up; the entry has no windows.

    Counts only as the last entry: a plan that continues after it (with a raised cap on epochs) has not ended.
    """

    n: int
    reason: str = DATA_EXHAUSTED

    def body(self) -> dict[str, Any]:
        return {"v": 1, "n": self.n, "end": self.reason}


Entry = Segment | Passed | Closed | End


@dataclass(frozen=True)
class Plan:
    """The content of a plan log."""

    entries: tuple[Entry, ...]  # entry i has n = i
    head: str  # the chain hash of the last line
    hashes: tuple[str, ...] = ()  # the chain hash of each line

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of windows before each entry; the last element is the number of all windows."""
        return tuple(accumulate((windows_of(entry) for entry in self.entries), initial=0))

    @property
    def windows(self) -> int:
        return self.starts[-1]

    def followed_by(self, entry: Entry, digest: str) -> Plan:
        """Returns this plan with one more entry, whose line has the hash `digest`."""
        plan = Plan((*self.entries, entry), digest, (*self.hashes, digest))
        plan.__dict__["starts"] = (*self.starts, self.windows + windows_of(entry))
        return plan

    @property
    def ended(self) -> bool:
        return bool(self.entries) and isinstance(self.entries[-1], End)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Segment))


def windows_of(entry: Entry) -> int:
    """Returns the number of windows of an entry; 0 unless it is a segment."""
    return entry.windows if isinstance(entry, Segment) else 0


def newest(entries: Sequence[Entry]) -> Segment | Closed | None:
    """Returns the last of the entries that the next segment continues."""
    return next((entry for entry in reversed(entries) if isinstance(entry, Segment | Closed)), None)


def segment_key(seed: int, n: int) -> str:
    """Returns the permutation key of entry n: sha256 of the canonical JSON of [run seed, n], in hex."""
    return hashlib.sha256(canonical_json([seed, n])).hexdigest()


def read_plan(path: Path, run_id: str | None = None) -> Plan:
    """Returns the plan in a file (a missing file is the empty plan), without a torn last line.

    Raises DataError with the line that is damaged, invalid, or of another run than `run_id`.
    """
    scan = LogScan(path)
    entries: list[Entry] = []
    hashes: list[str] = []
    trouble = ""
    for body, digest in scan:
        if not trouble:
            try:
                entry = parse_entry(body, f"{path}, line {scan.line},")
                _check(entry, entries, run_id)
                entries.append(entry)
            except ValueError as problem:
                trouble = f"entry {len(entries)}, line {scan.line}: {problem}"
        hashes.append(digest)
    if scan.damage:
        raise DataError(
            f"{path}: {scan.damage[0]}; the plan is history and is not repaired by guessing: "
            "put back the copy in the newest checkpoint, or restore the file"
        )
    if trouble:
        raise DataError(f"{path}: {trouble}")
    return Plan(tuple(entries), scan.head, tuple(hashes))


def parse_entry(body: Mapping[str, Any], where: Path | str = "the plan") -> Entry:
    """Returns the entry of a line; raises ValueError for an invalid body.

    Raises UnknownFormat, with `where`, for an unknown version.
    """
    if "v" not in body:
        raise ValueError("it says no format version")
    require_version(body, where, VERSIONS)
    match body:
        case {"v": 1, "n": int(n), "passed": [str(path), str(reason)]}:
            return Passed(n, path, reason)
        case {"v": 2, "n": int(n), "passed": [str(path), str(reason)], "dataset": str(dataset)} if dataset:
            return Passed(n, path, reason, dataset)
        case {"v": 2, "n": int(n), "closed": [str(dataset), int(epoch)], "tail_tokens": int(left)} if (
            left >= 0
        ):
            return Closed(n, dataset, epoch, left)
        case {"v": 1, "n": int(n), "end": str(reason)}:
            return End(n, reason)
        case {"v": 2, "parts": [{"dataset": str(dataset), "first": int(first), **extra}, *others]}:
            part = {str(name): value for name, value in extra.items()}
            if others or part.keys() - {"epoch", "sets", "windows"}:
                raise UnknownFormat(
                    f"{where} has several parts, or a part with more than this Stoker knows: it is left as "
                    "it is; start the Stoker that wrote it, or a newer one"
                )
            whole = parse_entry({**body, **part, "v": 1, "tail_tokens": 0}, where)
            if isinstance(whole, Segment) and dataset and body.get("windows") == whole.windows >= 1:
                return replace(whole, dataset=dataset, first=first)
        case {"v": 1, "n": int(n), "epoch": int(epoch), "sets": [_, *_] as sets, "seq_len": int(seq_len)} if (
            epoch >= 0 and seq_len >= 1 and body.get("permutation") == PERMUTATION
        ):
            windows, tail, key = (body.get(name) for name in ("windows", "tail_tokens", "key"))
            run_id = sys.intern(str(body.get("run_id", "")))
            if isinstance(windows, int) and isinstance(tail, int) and min(windows, tail) >= 0:
                return Segment(n, epoch, sets, seq_len, windows, tail, _hex64(key, "key"), run_id=run_id)
    fields = {name: value for name, value in body.items() if name not in {"sets", "parts"}}
    raise ValueError(
        f"{str(fields)[:500]} is no segment with permutation {PERMUTATION}, no passed, closed or end"
    )


class PlanWriter:
    """The only writer of a plan log: appends entries whose n continues it, durable when `append` returns.

    With a `run_id`, refuses the file and the entries of another run.
    """

    def __init__(self, path: Path, run_id: str | None = None) -> None:
        self.path, self._run_id = path, run_id
        self._plan = read_plan(path, run_id)
        self._log = ChainedLog(path)

    @property
    def plan(self) -> Plan:
        return self._plan

    def append(self, entry: Entry) -> Plan:
        """Appends an entry and returns the new plan; raises DataError for an entry that does not fit."""
        try:
            _check(entry, self._plan.entries, self._run_id)
        except ValueError as problem:
            raise DataError(f"{self.path}: entry {entry.n}: {problem}") from problem
        self._plan = self._plan.followed_by(entry, self._log.append(entry.body()))
        return self._plan


def restore(writer: PlanWriter, copy: Plan) -> int:
    """Appends the entries that the plan lacks and a checkpoint's copy has; returns how many."""
    return restore_lines(
        writer.path, writer.plan.hashes, copy.hashes, lambda n: writer.append(copy.entries[n]).head
    )


def _check(entry: Entry, entries: Sequence[Entry], run_id: str | None) -> None:
    if entry.n != len(entries):
        raise ValueError(f"n={entry.n} cannot follow {len(entries)} entries: a line is missing or doubled")
    if isinstance(entry, Segment | Closed) and not _continues(entry, newest(entries)):
        raise ValueError("it does not begin where its dataset's part before it ended")
    if run_id and isinstance(entry, Segment) and entry.run_id not in {"", run_id}:
        raise ValueError(
            f"it is of the plan of run id {entry.run_id}, this run's id is {run_id}: a plan of another run "
            "was put here; put back this run's, from its newest checkpoint"
        )


def _continues(entry: Segment | Closed, last: Segment | Closed | None) -> bool:
    """Whether an entry continues the dataset, as far as the lines alone show it."""
    if isinstance(entry, Closed):
        return isinstance(last, Segment) and (last.dataset, last.epoch) == (entry.dataset, entry.epoch)
    if last is None or not last.dataset:
        return entry.first == 0
    if entry.dataset != last.dataset or isinstance(last, Closed):
        return entry.dataset == last.dataset and entry.epoch > last.epoch and entry.first == 0
    if entry.sets[0][0] != last.sets[-1][0]:  # that set is lost for good
        return entry.epoch == last.epoch and entry.first == 0
    ends = entry.first == last.stop if len(last.sets) == 1 else 0 <= entry.first <= last.stop
    return entry.epoch == last.epoch and ends


def _hex64(value: object, what: str) -> str:
    if not (isinstance(value, str) and _HEX64.fullmatch(value)):
        raise ValueError(f"{what}={value!r} is not a sha256 in hex")
    return value


def _pair(pair: Sequence[str]) -> SetPair:
    if not (isinstance(pair, list | tuple) and len(pair) == 2):
        raise ValueError("sets is not a list of [key, manifest sha256]")
    key, manifest = _hex64(pair[0], "set key"), _hex64(pair[1], "manifest sha256")
    return sys.intern(key), sys.intern(manifest)  # later epochs name the same sets again
