"""Decides how the plan grows: a pure decision from the state of the sources, well ahead of the trainer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stoker.plan.draft import Draft
from stoker.plan.log import End, Entry, Plan, SetPair

AHEAD_BATCHES = 32  # global batches to plan ahead of the trainer, up to the run's end
ENOUGH = "far enough ahead"
MISSING = "missing"  # the reason to pass over a source that did not come within the hold

SourceStanding = Literal["pending", "cold", "unproven", "ready", "quarantined", "duplicate"]
_AWAY = frozenset(("cold", "unproven"))  # ready, except for its disk or its proof
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
    """A listed source and its shard set, for the plan.

    The set of a ready source is proven on hot; of an unproven source, on hot and not yet proven; of a cold
    source, on warm only or about to leave hot.
    """

    path: str
    standing: SourceStanding
    key: str = ""
    manifest_sha256: str = ""
    train_tokens: int = 0
    arrived: float = 0.0  # orders sets by when they became ready (any unit); ties keep the listing's order

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
        """Returns the source from the state in its record (None: no record yet) and its shard set."""
        standing = _STANDING.get(state or "", "pending")
        if standing == "ready":
            is_known = key and manifest_sha256
            standing = "pending" if not is_known else "cold" if not hot else "ready" if proven else "unproven"
        return PlanSource(path, standing, key or "", manifest_sha256 or "", train_tokens, arrived)


@dataclass(frozen=True)
class Cut:
    """A change of the sequence length: no entry reaches over the plan's first so many windows."""

    windows: int
    seq_len: int  # of what is planned beyond


@dataclass(frozen=True)
class GrowthPolicy:
    """The settings of the plan, from the configuration."""

    seed: int
    seq_len: int  # of segments appended from now on, up to the first cut
    segment_tokens: int
    order: Literal["listing", "arrival"] = "listing"
    hold_s: float = 1800.0
    epochs: int | None = None  # None: no limit
    first_segment_tokens: int | None = None  # the start gate's, where it needs less than a segment
    run_id: str = ""  # written into new segments
    dataset: str = ""  # written into their parts
    cuts: tuple[Cut, ...] = ()  # in order


@dataclass(frozen=True)
class Growth:
    """A decision about the plan."""

    entries: tuple[Entry, ...]  # to append now
    why: str  # no more entries can be appended
    waiting: Mapping[str, float] = field(default_factory=dict)  # missing source -> start of the wait
    coming: tuple[SetPair, ...] = ()  # sets of the next entries, once all sets are hot and proven


def decide(
    plan: Plan,
    sources: Sequence[PlanSource],
    *,
    complete: bool,
    whole: bool = False,
    target: int,
    policy: GrowthPolicy,
    now: float,
    waiting: Mapping[str, float] | None = None,
) -> Growth:
    """Returns the entries to append so that the plan stays ahead of the trainer.

    - `sources` are in listing order.
    - `complete`: the listing is final and each source is settled.
    - `whole`: only the listing is final. Then a source that did not come within the hold counts as missing,
      and an epoch may close without it; but the plan does not end, because the source may still come.
    - `target`: the windows that the plan must have.
    - `now`: monotonic seconds; `waiting`: the `Growth.waiting` of the last decision.
    """
    pending = [source.path for source in sources if source.standing == "pending"]
    if plan.windows >= target and not pending:
        return Growth((), ENOUGH)
    draft = Draft(plan, sources, policy)
    since = _missing(draft, sources, policy, now, waiting or {}, whole=whole)
    held = draft.spoken.union(path for path, start in since.items() if now - start >= policy.hold_s)
    settled = held.issuperset(pending) and (whole if pending else complete)
    rules = _Rules(policy, complete and not pending, settled, frozenset(held))
    why = _extend(draft, target, sources, rules)
    entries, chosen = tuple(draft.fresh), len(draft.chosen)
    beyond = _extend(draft, target, sources, replace(rules, hopeful=True))
    later = draft.fresh[
        len(entries) :
    ]  # they wait for cold or unproven sets; without them, these are no reason
    return Growth(entries, why if later else beyond, since, tuple(draft.chosen[chosen:]))


@dataclass(frozen=True)
class _Rules:
    """The facts that hold for one decision."""

    policy: GrowthPolicy
    complete: bool
    settled: bool  # the plan waits for no source, except perhaps for `held` ones
    held: frozenset[str]  # paths whose hold is over
    hopeful: bool = False  # cold and unproven sets count as ready

    def takes(self, source: PlanSource) -> bool:
        return source.standing == "ready" or (self.hopeful and source.standing in _AWAY)


@dataclass(frozen=True)
class _Scan:
    """The result of one pass over the sources."""

    chosen: tuple[PlanSource, ...]  # for the next segment
    passed: tuple[tuple[str, str], ...]  # path and reason
    blocked: PlanSource | None  # the source to wait for

    @property
    def tokens(self) -> int:
        return sum(source.train_tokens for source in self.chosen)

    @property
    def why(self) -> str:
        """The reason to wait, as a status text."""
        if self.blocked is None:
            return "waiting for more shard sets"
        if self.blocked.standing == "unproven":
            return f"proving the shard set of {self.blocked.path}"
        back = " to be brought back from warm" if self.blocked.standing == "cold" else ""
        return f"waiting for {self.blocked.path}{back}"


def _extend(draft: Draft, target: int, sources: Sequence[PlanSource], rules: _Rules) -> str:
    """Adds entries until the plan reaches the target; returns why no more can be added."""
    why = ""
    while not why and draft.windows < target:
        why = _next(draft, sources, rules)
    return why or ENOUGH


def _next(draft: Draft, sources: Sequence[PlanSource], rules: _Rules) -> str:
    """Adds the entries up to the next segment, and returns ""; or adds the end or none, and returns why."""
    policy, epoch, rest = rules.policy, draft.epoch, draft.rest
    if rest is not None and rest.standing == "pending":
        return _Scan((), (), rest).why
    wanted = draft.wanted(epoch)
    scan, is_over = _survey(draft, sources, rules, epoch)
    if draft.closed or is_over:
        if not sources:
            return "the listing is empty"
        rest = None
        ended = scan  # also with sources after the last set, which the next epoch's scan may not reach
        scan, is_barren = _survey(draft, sources, rules, epoch + 1)
        if (
            draft.epoch_windows == 0
            or (policy.epochs is not None and epoch + 1 >= policy.epochs)
            or (draft.has_parts and is_barren)
        ):
            if not rules.complete:
                missing = (path for path, reason in ended.passed if reason == MISSING)
                return next((f"waiting for {path}" for path in missing), ended.why)
            if not draft.ended:
                draft.pass_over(ended.passed)
                draft.close()
                draft.add(End(draft.length))
            return "the data is used up"
        epoch, scan = epoch + 1, replace(scan, passed=ended.passed + scan.passed)
    if rest is not None and not rules.takes(rest):  # the epoch goes on where it was cut
        return _Scan((), (), rest).why
    short = scan.tokens < wanted
    if not scan.chosen or (short and (scan.blocked is not None or not rules.settled)):
        return scan.why
    draft.pass_over(scan.passed)
    draft.add_segment(epoch, scan.chosen)
    return ""


def _survey(draft: Draft, sources: Sequence[PlanSource], rules: _Rules, epoch: int) -> tuple[_Scan, bool]:
    """Returns the scan for the next segment of an epoch, and whether the epoch has no more segment."""
    named, rest = (draft.named, draft.rest) if epoch == draft.epoch else (frozenset(), None)
    scan = hoped = _scan(sources, named, draft.wanted(epoch), rules, epoch, rest=rest)
    if draft.has_parts and scan.blocked is not None:  # nothing is brought back for a tail
        rules = replace(rules, hopeful=True)
        hoped = _scan(sources, named, draft.wanted(epoch), rules, epoch, rest=rest)
    is_over = rules.settled and hoped.blocked is None and not draft.is_enough(hoped.chosen)
    return hoped if is_over else scan, is_over


def _scan(
    sources: Sequence[PlanSource],
    named: Collection[str],
    wanted: int,
    rules: _Rules,
    epoch: int,
    *,
    rest: PlanSource | None = None,
) -> _Scan:
    """Scans the sources in order until a segment is full, or until a source that the plan must wait for.

    The segment begins with `rest`, if any, whatever its standing.

    A source whose set the epoch already has is done, in any state. In arrival order the plan waits for no
    pending source; in the first epoch, it waits for a cold or unproven source only to fill a segment.
    """
    chosen = [] if rest is None else [rest]
    tokens, strict = sum(source.train_tokens for source in chosen), rules.policy.order == "listing"
    passed: list[tuple[str, str]] = []
    away: PlanSource | None = None
    taken = set(named)
    if not strict and epoch == 0:  # later epochs follow the listing with both settings
        sources = sorted(sources, key=lambda source: source.arrived)
    for source in sources:
        if tokens >= wanted:
            break
        if source.key and source.key in taken:
            continue
        if rules.takes(source):
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
    draft: Draft,
    sources: Sequence[PlanSource],
    policy: GrowthPolicy,
    now: float,
    waiting: Mapping[str, float],
    *,
    whole: bool,
) -> dict[str, float]:
    """Returns the start of the wait for each missing source that the plan could continue without.

    The plan can continue once a later source of the listing has its shard set, or once only one source is
    missing of a final listing. The plan does not wait again for a source that an entry has passed over.
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
