"""How the plan grows: a pure decision from what the sources say, made well before the trainer gets there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stoker.plan.log import End, Entry, Passed, Plan, Segment, segment_key

AHEAD_BATCHES = 32  # global batches kept planned beyond the trainer, unless the horizon is nearer

SourceStanding = Literal["pending", "ready", "quarantined", "duplicate"]
_STANDING: Mapping[str, SourceStanding] = {
    "proven": "ready",
    "synced": "ready",
    "released": "ready",
    "quarantined": "quarantined",
    "duplicate": "duplicate",
}


@dataclass(frozen=True)
class PlanSource:
    """A listed source as the plan sees it; a ready one has a proven shard set with that many train tokens."""

    path: str
    standing: SourceStanding
    key: str = ""
    manifest_sha256: str = ""
    train_tokens: int = 0

    @staticmethod
    def of(
        path: str, state: str | None, key: str | None, manifest_sha256: str | None, train_tokens: int
    ) -> PlanSource:
        """From a source record's state (None: no record yet) and what it says of its shard set."""
        standing = _STANDING.get(state or "", "pending")
        if standing == "ready" and not (key and manifest_sha256):
            standing = "pending"
        return PlanSource(path, standing, key or "", manifest_sha256 or "", train_tokens)


@dataclass(frozen=True)
class GrowthPolicy:
    """What the configuration says of the plan; `epochs` None is without end."""

    seed: int
    seq_len: int
    global_batch: int
    segment_tokens: int
    order: Literal["listing", "arrival"] = "listing"
    hold_s: float = 1800.0
    epochs: int | None = None
    first_segment_tokens: int | None = None  # the start gate's, where it asks for less than a segment


@dataclass(frozen=True)
class Growth:
    """Entries to append now, why there are no more, and since when missing sources have been overtaken."""

    entries: tuple[Entry, ...]
    why: str
    waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Scan:
    """One pass over the sources: the sets of a next segment, whom it passes over, and who is in the way."""

    chosen: tuple[PlanSource, ...]
    passed: tuple[tuple[str, str], ...]
    blocked: str | None

    @property
    def tokens(self) -> int:
        return sum(source.train_tokens for source in self.chosen)


def decide(
    plan: Plan,
    sources: Sequence[PlanSource],
    *,
    complete: bool,
    consumed: int,
    horizon: int,
    policy: GrowthPolicy,
    now: float,
    waiting: Mapping[str, float] | None = None,
) -> Growth:
    """What to append so that the plan stays ahead of the trainer.

    `sources` stand in listing order; `complete` says that no more will come and each of them is settled;
    `consumed` are the plan's windows before the newest position, `horizon` those before the run's end (see
    `horizon_windows`); `now` is monotonic seconds; `waiting` is what the last decision gave back.
    """
    complete = complete and not any(source.standing == "pending" for source in sources)
    target = min(horizon, consumed + AHEAD_BATCHES * policy.global_batch)
    entries: tuple[Entry, ...] = plan.entries
    since = _overtaken(entries, sources, policy, now, waiting or {})
    held = frozenset(path for path, start in since.items() if now - start >= policy.hold_s)
    why = ""
    while not why and Plan(entries, "").windows < target:
        more, why = _next(entries, sources, complete, policy, held)
        entries += more
    return Growth(entries[len(plan.entries) :], why or "far enough ahead", since)


def horizon_windows(
    *, consumed: int, step: int, steps: int, global_batch: int, skipped_ahead: int = 0
) -> int:
    """Windows of the plan before the run's end, seen from a step with `consumed` windows before it."""
    return consumed + max(0, steps - step) * global_batch + skipped_ahead


def _next(
    entries: tuple[Entry, ...],
    sources: Sequence[PlanSource],
    complete: bool,
    policy: GrowthPolicy,
    held: frozenset[str],
) -> tuple[tuple[Entry, ...], str]:
    """The entries up to and with the next segment or the end; or none of them, and why."""
    epoch, named = _epoch(entries)
    scan = _scan(sources, named, policy, held, first=not named and epoch == 0)
    if not scan.chosen and complete:
        if not sources:
            return (), "the listing is empty"
        if _used_up(entries, epoch, policy):
            ended = isinstance(entries[-1], End) if entries else False
            passed = _passed(entries, scan.passed)
            return (() if ended else (*passed, End(len(entries) + len(passed)))), "the data is used up"
        epoch += 1
        behind = scan.passed  # those behind the last set: the next epoch's scan may not get to them
        scan = _scan(sources, frozenset(), policy, held, first=False)
        scan = replace(scan, passed=behind + scan.passed)
    wanted = _wanted(policy, first=not named and epoch == 0)
    if not scan.chosen or (scan.tokens < wanted and not complete):
        return (), f"waiting for {scan.blocked}" if scan.blocked else "waiting for more shard sets"
    passed = _passed(entries, scan.passed)
    return (*passed, _segment(len(entries) + len(passed), epoch, scan.chosen, policy)), ""


def _epoch(entries: Iterable[Entry]) -> tuple[int, frozenset[str]]:
    """The epoch the plan is in and the keys it has named there."""
    segments = [entry for entry in entries if isinstance(entry, Segment)]
    epoch = segments[-1].epoch if segments else 0
    return epoch, frozenset(key for entry in segments if entry.epoch == epoch for key, _ in entry.sets)


def _used_up(entries: Iterable[Entry], epoch: int, policy: GrowthPolicy) -> bool:
    """Whether no epoch may follow: the cap is reached, or this one gave not a single window."""
    windows = sum(entry.windows for entry in entries if isinstance(entry, Segment) and entry.epoch == epoch)
    return windows == 0 or (policy.epochs is not None and epoch + 1 >= policy.epochs)


def _wanted(policy: GrowthPolicy, *, first: bool) -> int:
    """Tokens that close a segment: never so few that it has no window."""
    tokens = policy.segment_tokens
    if first and policy.first_segment_tokens is not None:
        tokens = min(tokens, policy.first_segment_tokens)
    return max(tokens, policy.seq_len + 1)


def _scan(
    sources: Sequence[PlanSource],
    named: frozenset[str],
    policy: GrowthPolicy,
    held: frozenset[str],
    *,
    first: bool,
) -> _Scan:
    """Go through the sources in listing order until a segment is full or one that may still come is met."""
    wanted, tokens = _wanted(policy, first=first), 0
    chosen: list[PlanSource] = []
    passed: list[tuple[str, str]] = []
    taken = set(named)
    for source in sources:
        if tokens >= wanted:
            break
        if source.standing == "ready":
            if source.key not in taken:
                chosen.append(source)
                taken.add(source.key)
                tokens += source.train_tokens
        elif source.standing != "pending":
            passed.append((source.path, source.standing))
        elif source.path in held:
            passed.append((source.path, "missing"))
        elif policy.order == "listing":
            return _Scan(tuple(chosen), tuple(passed), source.path)
    return _Scan(tuple(chosen), tuple(passed), None)


def _overtaken(
    entries: Iterable[Entry],
    sources: Sequence[PlanSource],
    policy: GrowthPolicy,
    now: float,
    waiting: Mapping[str, float],
) -> dict[str, float]:
    """Since when a shard set that comes later in the listing has been ready before each missing source.

    Passing a source over helps only then. One that an entry has passed over already is not waited for again.
    """
    if policy.order == "arrival":
        return {}
    _, named = _epoch(entries)
    given_up = {entry.path for entry in entries if isinstance(entry, Passed)}
    usable = (source.standing == "ready" and source.key not in named for source in sources)
    last = max((index for index, ready in enumerate(usable) if ready), default=0)
    return {
        source.path: now - policy.hold_s if source.path in given_up else waiting.get(source.path, now)
        for source in sources[:last]
        if source.standing == "pending"
    }


def _passed(entries: tuple[Entry, ...], found: Iterable[tuple[str, str]]) -> tuple[Passed, ...]:
    """Entries for passed sources that the plan does not speak of yet."""
    known = {entry.path for entry in entries if isinstance(entry, Passed)}
    fresh = {path: reason for path, reason in found if path not in known}
    return tuple(Passed(len(entries) + i, path, reason) for i, (path, reason) in enumerate(fresh.items()))


def _segment(n: int, epoch: int, chosen: Sequence[PlanSource], policy: GrowthPolicy) -> Segment:
    tokens = sum(source.train_tokens for source in chosen)
    windows = max(0, (tokens - 1) // policy.seq_len)
    return Segment(
        n=n,
        epoch=epoch,
        sets=tuple((source.key, source.manifest_sha256) for source in chosen),
        seq_len=policy.seq_len,
        windows=windows,
        tail_tokens=tokens - windows * policy.seq_len,
        key=segment_key(policy.seed, n),
    )
