"""The plan log: the order in which shard sets are trained on. Only the supervisor appends to it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from stoker.plan.parts import Part, SetPair, as_pair, hex64
from stoker.store.errors import DataError, UnknownFormat
from stoker.store.files import canonical_json
from stoker.store.log import ChainedLog, LogScan, restore_lines
from stoker.store.record import require_version

PERMUTATION = "feistel8-v1"
DATA_EXHAUSTED = "data_exhausted"
VERSIONS = (1, 2)  # of a line


@dataclass(frozen=True, slots=True)
class Segment:
    """Shard sets whose concatenated train streams are trained on in one keyed permutation of windows.

    A line of version 1 takes its sets whole, but for their tail; one of version 2 (`of_parts`) takes `parts`.
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
    parts: tuple[Part, ...] = ()  # then `sets` are those of all parts, and the entry has no tail

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "sets", tuple(map(as_pair, self.sets)))

    @staticmethod
    def of_parts(n: int, parts: Sequence[Part], seq_len: int, key: str, run_id: str = "") -> Segment:
        sets = tuple(pair for part in parts for pair in part.sets)
        windows = sum(part.windows for part in parts)
        return Segment(n, parts[0].epoch, sets, seq_len, windows, 0, key, run_id=run_id, parts=tuple(parts))

    def body(self) -> dict[str, Any]:
        body = {"v": 2 if self.parts else 1, **asdict(self)}
        for name in ("epoch", "sets", "tail_tokens") if self.parts else ("parts",):
            del body[name]
        if not self.run_id:
            del body["run_id"]  # an old line keeps its bytes and its hash
        return body

    def origins(self, tokens: Sequence[int]) -> list[tuple[int, int, int]]:
        """Returns of each part its windows, its first window in the entry, and the token that one begins at.

        In the stream of all `sets`, which have so many `tokens` each.
        """
        found, window, start, count = [], 0, 0, 0
        for part in self.parts or (Part("", self.epoch, self.sets, 0, self.windows),):
            found.append((part.windows, window, start + part.first))
            window += part.windows
            start, count = start + sum(tokens[count : count + len(part.sets)]), count + len(part.sets)
        return found

    def misfit(self, tokens: Sequence[int]) -> str:
        """Returns how its counts contradict its sets, which have so many `tokens` each; "" if they agree."""
        total, done = sum(tokens), 0
        for part in self.parts:
            counts = tokens[done : done + len(part.sets)]
            if not part.fits(self.seq_len, counts):
                its = f"{part.windows} windows of {self.seq_len} from token {part.first} of {part.dataset}"
                return f"{its}; its shard sets have {sum(counts)} train tokens, of which those do not read"
            done += len(part.sets)
        windows = max(0, (total - 1) // self.seq_len)
        tail = total - windows * self.seq_len
        if self.parts or (windows, tail) == (self.windows, self.tail_tokens):
            return ""
        its = f"{self.windows} windows and {self.tail_tokens} tail tokens"
        return f"{its}; its shard sets have {total} train tokens, which give {windows} and {tail}"


@dataclass(frozen=True)
class Passed:
    """A listed source without a shard set in the plan, and the reason; the entry has no windows."""

    n: int
    path: str
    reason: str
    dataset: str = ""  # in a line of version 2

    def body(self) -> dict[str, Any]:
        passed = {"n": self.n, "passed": [self.path, self.reason]}
        return {"v": 2, **passed, "dataset": self.dataset} if self.dataset else {"v": 1, **passed}


@dataclass(frozen=True)
class Closed:
    """The end of an epoch that has parts: none follows, and its last tokens are no targets."""

    n: int
    dataset: str
    epoch: int
    tail_tokens: int

    def body(self) -> dict[str, Any]:
        closed = {"closed": [self.dataset, self.epoch], "tail_tokens": self.tail_tokens}
        return {"v": 2, "n": self.n, **closed}


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


def last_part(entries: Sequence[Entry], dataset: str) -> tuple[Part, int, bool] | None:
    """Returns a dataset's last part, its seq_len, and whether its epoch is closed; None before the first."""
    is_closed = False
    for entry in reversed(entries):
        is_closed |= isinstance(entry, Closed) and entry.dataset == dataset
        if isinstance(entry, Segment):
            for part in reversed(entry.parts):
                if part.dataset == dataset:
                    return part, entry.seq_len, is_closed
            if not entry.parts:
                break
    return None


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
    run_id = sys.intern(str(body.get("run_id", "")))
    match body:
        case {"v": 1, "n": int(n), "passed": [str(path), str(reason)]}:
            return Passed(n, path, reason)
        case {"v": 2, "n": int(n), "passed": [str(path), str(reason)], "dataset": str(dataset)} if dataset:
            return Passed(n, path, reason, dataset)
        case {"v": 2, "n": int(n), "closed": [str(dataset), int(epoch)], "tail_tokens": int(tail)} if (
            min(epoch, tail) >= 0
        ):
            return Closed(n, dataset, epoch, tail)
        case {"v": 1, "n": int(n), "end": str(reason)}:
            return End(n, reason)
        case {"v": 2, "n": int(n), "parts": [_, *_] as parts, "seq_len": int(seq_len)} if (
            seq_len >= 1 and body.get("permutation") == PERMUTATION
        ):
            found = [_parse_part(part, where) for part in parts]
            segment = Segment.of_parts(n, found, seq_len, hex64(body.get("key"), "key"), run_id)
            if segment.windows == body.get("windows"):
                return segment
        case {"v": 1, "n": int(n), "epoch": int(epoch), "sets": [_, *_] as sets, "seq_len": int(seq_len)} if (
            epoch >= 0 and seq_len >= 1 and body.get("permutation") == PERMUTATION
        ):
            windows, left, key = (body.get(name) for name in ("windows", "tail_tokens", "key"))
            if isinstance(windows, int) and isinstance(left, int) and min(windows, left) >= 0:
                return Segment(n, epoch, sets, seq_len, windows, left, hex64(key, "key"), run_id=run_id)
    fields = {name: value for name, value in body.items() if name not in {"sets", "parts"}}
    raise ValueError(
        f"{str(fields)[:500]} is no segment with permutation {PERMUTATION}, no passed, no closed and no end"
    )


def _parse_part(body: object, where: Path | str) -> Part:
    match body:
        case {
            "dataset": str(dataset), "epoch": int(epoch), "sets": [_, *_] as sets,
            "first": int(first), "windows": int(windows), **other,
        } if min(epoch, first, windows - 1) >= 0:  # fmt: skip
            if other:
                raise UnknownFormat(
                    f"{where} has a part with {', '.join(map(str, other))}, which this Stoker does not know: "
                    "it is left as it is; start the Stoker that wrote it, or a newer one"
                )
            return Part(dataset, epoch, sets, first, windows)
    raise ValueError("its parts are no list of dataset, epoch, sets, first and windows")


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
    if isinstance(entry, Closed):
        last = last_part(entries, entry.dataset)
        if last is None or last[2] or last[0].epoch != entry.epoch:
            raise ValueError(f"it closes epoch {entry.epoch} of {entry.dataset}, which is not open")
    if not isinstance(entry, Segment):
        return
    if run_id and entry.run_id not in {"", run_id}:
        raise ValueError(
            f"it is of the plan of run id {entry.run_id}, this run's id is {run_id}: a plan of another run "
            "was put here; put back this run's, from its newest checkpoint"
        )
    before = next((one for one in reversed(entries) if isinstance(one, Segment)), None)
    if before is not None and before.parts and not entry.parts:
        raise ValueError("it is of version 1 and follows a segment of version 2")
    for number, part in enumerate(entry.parts):
        so_far = (*entries, replace(entry, parts=entry.parts[:number])) if number else entries
        if why := _break(part, last_part(so_far, part.dataset)):
            raise ValueError(f"its part of {part.dataset}, epoch {part.epoch}, {why}")


def _break(part: Part, before: tuple[Part, int, bool] | None) -> str:
    """Returns why a part does not continue its dataset's last one, as far as the lines alone show; or ""."""
    last, seq_len, is_closed = before or (None, 0, True)
    if last is None or part.epoch > last.epoch:
        return f"begins at token {part.first}, not at 0" if part.first else ""
    if part.epoch < last.epoch or is_closed:
        return f"comes after epoch {last.epoch} was {'closed' if is_closed else 'begun'}"
    if part.sets[0] == last.sets[-1]:
        stop = last.stop(seq_len)
        is_its = part.first == stop if len(last.sets) == 1 else part.first <= stop
        return "" if is_its else f"begins at token {part.first}, the part before ended at {stop}"
    # Where the set in which the last part ended is lost for good, the next set is begun.
    return f"begins at token {part.first} of another set than the part before ended in" if part.first else ""
