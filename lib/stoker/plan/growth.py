"""How the plan grows: a pure decision from what the sources say, made well before the trainer gets there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stoker.plan.log import End, Entry, Passed, Plan, Segment, SetPair, segment_key, windows_of

AHEAD_BATCHES = 32  # global batches kept planned beyond the trainer, unless the horizon is nearer
ENOUGH = "far enough ahead"
MISSING = "missing"  # why a source is passed over that did not come within the hold

SourceStanding = Literal["pending", "cold", "unproven", "ready", "quarantined", "duplicate"]
_AWAY = frozenset(("cold", "unproven"))  # ready, but for where it lies or for its proof
_THERE = _AWAY | {"ready"}
_STANDING: Mapping[str, SourceStanding] = {
    "proven": "ready",
    "synced": "ready",
    "released": "ready",
    "quarantined": "quarantined",
    "duplicate": "duplicate",
}


@dataclass(frozen=True)
class PlanSource:
    """A listed source as the plan sees it.

    A ready one has a proven shard set with that many train tokens on the hot disk; an unproven one has it
    there and still to be proven; a cold one has it on warm only, or about to leave. `arrived` says in which
    order sets became ready (any unit; read for arrival order only, ties go by the listing).
    """

    path: str
    standing: SourceStanding
    key: str = ""
    manifest_sha256: str = ""
    train_tokens: int = 0
    arrived: float = 0.0

    @staticmethod
    def of(
        path: str,
        state: str | None,
        key: str | None,
        manifest_sha256: str | None,
        train_tokens: int,
        *,
        hot: bool = True,
        proven: bool = True,
        arrived: float = 0.0,
    ) -> PlanSource:
        """From a source record's state (None: no record yet) and what it says of its shard set."""
        standing = _STANDING.get(state or "", "pending")
        if standing == "ready":
            is_known = key and manifest_sha256
            standing = "pending" if not is_known else "cold" if not hot else "ready" if proven else "unproven"
        return PlanSource(path, standing, key or "", manifest_sha256 or "", train_tokens, arrived)


@dataclass(frozen=True)
class GrowthPolicy:
    """What the configuration says of the plan; `epochs` None is without end.

    `seq_len` counts for segments appended from now on; `run_id` is written into them.
    """

    seed: int
    seq_len: int
    global_batch: int
    segment_tokens: int
    order: Literal["listing", "arrival"] = "listing"
    hold_s: float = 1800.0
    epochs: int | None = None
    first_segment_tokens: int | None = None  # the start gate's, where it asks for less than a segment
    run_id: str = ""


@dataclass(frozen=True)
class Growth:
    """Entries to append now, why there are no more, and since when each missing source is waited for."""

    entries: tuple[Entry, ...]
    why: str
    waiting: Mapping[str, float] = field(default_factory=dict)

    @property
    def sets(self) -> tuple[SetPair, ...]:
        """The sets that the entries name, in order."""
        return tuple(pair for entry in self.entries if isinstance(entry, Segment) for pair in entry.sets)


class _Draft:
    """Gathers `fresh` entries, and knows of the plan what has to be known for the next one.

    `epoch` is the last segment's, `named` the keys of its sets so far, `spoken` the paths passed over.
    """

    def __init__(self, plan: Plan) -> None:
        self.fresh: list[Entry] = []
        self.length = len(plan.entries)
        self.windows = plan.windows
        self.ended = plan.ended
        self.spoken = {entry.path for entry in plan.entries if isinstance(entry, Passed)}
        segments = plan.segments
        self.epoch = segments[-1].epoch if segments else 0
        ours = [segment for segment in segments if segment.epoch == self.epoch]
        self.named = {key for segment in ours for key, _ in segment.sets}
        self.epoch_windows = sum(segment.windows for segment in ours)

    def pass_over(self, found: Iterable[tuple[str, str]]) -> None:
        """Say of sources, with their reasons, that they are passed over: of each once."""
        for path, reason in found:
            if path not in self.spoken:
                self.spoken.add(path)
                self.add(Passed(self.length, path, reason))

    def add_segment(self, epoch: int, chosen: Sequence[PlanSource], policy: GrowthPolicy) -> None:
        """Add a segment of these sources' sets."""
        if epoch != self.epoch:
            self.epoch, self.named, self.epoch_windows = epoch, set(), 0
        tokens, seq_len = sum(source.train_tokens for source in chosen), policy.seq_len
        windows = max(0, (tokens - 1) // seq_len)
        sets = [(source.key, source.manifest_sha256) for source in chosen]
        tail, key = tokens - windows * seq_len, segment_key(policy.seed, self.length)
        self.add(Segment(self.length, epoch, sets, seq_len, windows, tail, key, run_id=policy.run_id))
        self.named.update(key for key, _ in sets)
        self.epoch_windows += windows

    def add(self, entry: Entry) -> None:
        self.fresh.append(entry)
        self.length += 1
        self.windows += windows_of(entry)
        self.ended = isinstance(entry, End)


def decide(
    plan: Plan,
    sources: Sequence[PlanSource],
    *,
    complete: bool,
    whole: bool = False,
    consumed: int,
    horizon: int,
    policy: GrowthPolicy,
    now: float,
    waiting: Mapping[str, float] | None = None,
    ahead: int | None = None,
    hopeful: bool = False,
) -> Growth:
    """What to append so that the plan stays ahead of the trainer.

    `sources` stand in listing order; `complete` says that no more will come and each of them is settled,
    `whole` only that no more will be listed: then what was waited for long enough is missing for good, as far
    as anybody can tell, and the other sets are all there is, but it is no reason to end the plan.
    `consumed` are the plan's windows before the newest position, `horizon` those before the run's end; `now`
    is monotonic seconds; `waiting` is what the last decision gave back. The plan is to reach `ahead` windows
    beyond the trainer (see `residency.ahead_windows`), never fewer than 32 global batches. `hopeful` takes
    cold and unproven sets for ready ones: what would be named if all were hot and proven, not to be appended.
    """
    target = min(horizon, consumed + max(ahead or 0, AHEAD_BATCHES * policy.global_batch))
    pending = [source.path for source in sources if source.standing == "pending"]
    if plan.windows >= target and not pending:
        return Growth((), ENOUGH)
    draft = _Draft(plan)
    since = _missing(draft, sources, policy, now, waiting or {}, whole=whole)
    held = draft.spoken.union(path for path, start in since.items() if now - start >= policy.hold_s)
    settled = held.issuperset(pending) and (whole if pending else complete)
    rules = _Rules(policy, complete and not pending, settled, frozenset(held), hopeful)
    why = _extend(draft, target, sources, rules)
    entries = tuple(draft.fresh)
    if not hopeful and any(source.standing in _AWAY for source in sources):
        beyond = _extend(draft, target, sources, replace(rules, hopeful=True))
        if len(draft.fresh) == len(entries):  # those that are away are not what is lacking
            why = beyond
    return Growth(entries, why, since)


@dataclass(frozen=True)
class _Rules:
    """What holds for one decision: `held` are paths that were waited for long enough; `settled`: the plan has
    nothing to wait for but those, if anything."""

    policy: GrowthPolicy
    complete: bool
    settled: bool
    held: frozenset[str]
    hopeful: bool


@dataclass(frozen=True)
class _Scan:
    """One pass over the sources: the sets of a next segment, whom it passes over, and who is in the way."""

    chosen: tuple[PlanSource, ...]
    passed: tuple[tuple[str, str], ...]
    blocked: PlanSource | None

    @property
    def tokens(self) -> int:
        return sum(source.train_tokens for source in self.chosen)

    @property
    def why(self) -> str:
        """What there is to wait for."""
        if self.blocked is None:
            return "waiting for more shard sets"
        if self.blocked.standing == "unproven":
            return f"proving the shard set of {self.blocked.path}"
        back = " to be brought back from warm" if self.blocked.standing == "cold" else ""
        return f"waiting for {self.blocked.path}{back}"


def _extend(draft: _Draft, target: int, sources: Sequence[PlanSource], rules: _Rules) -> str:
    """Add what the plan may have now until it reaches the target; why it has no more."""
    why = ""
    while not why and draft.windows < target:
        why = _next(draft, sources, rules)
    return why or ENOUGH


def _next(draft: _Draft, sources: Sequence[PlanSource], rules: _Rules) -> str:
    """Add the entries up to and with the next segment; or the plan's end, or none, and why."""
    policy, epoch = rules.policy, draft.epoch
    full = wanted = max(policy.segment_tokens, policy.seq_len + 1)  # never so few that it has no window
    if epoch == 0 and not draft.named and policy.first_segment_tokens is not None:
        wanted = min(full, max(policy.first_segment_tokens, policy.seq_len + 1))
    scan = _scan(sources, draft.named, wanted, rules, epoch)
    if rules.settled and not scan.chosen and scan.blocked is None:
        if not sources:
            return "the listing is empty"
        if draft.epoch_windows == 0 or (policy.epochs is not None and epoch + 1 >= policy.epochs):
            if not rules.complete:
                missing = (path for path, reason in scan.passed if reason == MISSING)
                return next((f"waiting for {path}" for path in missing), scan.why)
            if not draft.ended:
                draft.pass_over(scan.passed)
                draft.add(End(draft.length))
            return "the data is used up"
        epoch, wanted = epoch + 1, full
        behind = scan.passed  # those behind the last set: the next epoch's scan may not get to them
        scan = _scan(sources, frozenset(), wanted, rules, epoch)
        scan = replace(scan, passed=behind + scan.passed)
    short = scan.tokens < wanted
    if not scan.chosen or (short and (scan.blocked is not None or not rules.settled)):
        return scan.why
    draft.pass_over(scan.passed)
    draft.add_segment(epoch, scan.chosen, policy)
    return ""


def _scan(
    sources: Sequence[PlanSource], named: Collection[str], wanted: int, rules: _Rules, epoch: int
) -> _Scan:
    """Go through the sources in order until a segment is full or one is met that must not be overtaken.

    A source of which the epoch has the set is behind, whatever became of it since. In arrival order nobody
    waits for a pending source, and in its first epoch for a cold or unproven one only to fill a segment.
    """
    tokens, strict = 0, rules.policy.order == "listing"
    chosen: list[PlanSource] = []
    passed: list[tuple[str, str]] = []
    away: PlanSource | None = None
    taken = set(named)
    if not strict and epoch == 0:  # a later epoch goes by the listing in either order
        sources = sorted(sources, key=lambda source: source.arrived)
    for source in sources:
        if tokens >= wanted:
            break
        if source.key and source.key in taken:
            continue
        if source.standing == "ready" or (rules.hopeful and source.standing in _AWAY):
            chosen.append(source)
            taken.add(source.key)
            tokens += source.train_tokens
        elif source.standing in _AWAY:
            away = away or source
            if strict or epoch > 0:
                break
        elif source.standing != "pending":
            passed.append((source.path, source.standing))
        elif source.path in rules.held:
            passed.append((source.path, MISSING))
        elif strict:
            return _Scan(tuple(chosen), tuple(passed), source)
    return _Scan(tuple(chosen), tuple(passed), away if tokens < wanted else None)


def _missing(
    draft: _Draft,
    sources: Sequence[PlanSource],
    policy: GrowthPolicy,
    now: float,
    waiting: Mapping[str, float],
    *,
    whole: bool,
) -> dict[str, float]:
    """Since when the plan could go on without each missing source.

    It could once a shard set that comes later in the listing is there, or once only one source is missing of
    all that will be listed. One that an entry has passed over already is not waited for again.
    """
    last = 0
    if policy.order == "listing":
        there = (one.standing in _THERE and one.key not in draft.named for one in sources)
        last = max((index for index, ready in enumerate(there) if ready), default=0)
    missing = [
        (index, one.path)
        for index, one in enumerate(sources)
        if one.standing == "pending" and one.key not in draft.named and one.path not in draft.spoken
    ]
    at_the_end = [path for index, path in missing if index >= last]
    overtaken = [path for index, path in missing if index < last]
    if whole and len(at_the_end) == 1:
        overtaken += at_the_end
    return {path: waiting.get(path, now) for path in overtaken}
