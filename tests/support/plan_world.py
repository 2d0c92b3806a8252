"""A pipeline without files: sources, a small hot disk and runs with histories, driven by the real decisions.

What a run trained on is kept as a plain list of (entry, offset) a step, so that the laws in
`support.plan_laws` are checked by counting and never by the arithmetic under test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from stoker.observe.ledger import Claim, Disk, room
from stoker.plan import growth, residency
from stoker.plan.consumption import Holdings
from stoker.plan.growth import GrowthPolicy, PlanSource, decide
from stoker.plan.log import Entry, Plan, Segment
from stoker.plan.positions import START, Position, after, left_after, take
from stoker.plan.residency import ShardSet
from stoker.plan.timelines import Timeline, Timelines, skips
from stoker.store.files import canonical_json
from stoker.store.log import lost_lines
from stoker.supervise.run.progress import finished_at

Window = tuple[int, int]  # entry, offset
DEVICE = 1


@dataclass
class WorldSource:
    """A source and its shard set. `here`: the set lies on hot; `warm`: a proven copy lies on warm."""

    path: str
    tokens: int
    state: str = "pending"  # proven, synced, quarantined
    here: bool = False
    warm: bool = False
    evicting: bool = False
    evicted: bool = False
    arrived: float = 0.0

    @property
    def key(self) -> str:
        return hashlib.sha256(self.path.encode()).hexdigest()

    @property
    def bytes(self) -> int:
        return self.tokens + 1

    @property
    def published(self) -> bool:
        return self.state in {"proven", "synced"}

    @property
    def hot(self) -> bool:
        return self.published and not (self.evicting or self.evicted)

    def renew(self) -> None:
        """To be built again from its parquet: what there was is gone."""
        self.state, self.here, self.warm, self.evicting, self.evicted = "pending", False, False, False, False


@dataclass(frozen=True)
class Step:
    """One training step: its windows, and the position after it."""

    windows: tuple[Window, ...]
    position: Position


@dataclass(frozen=True)
class Checkpoint:
    step: int
    position: Position
    plan: Plan


@dataclass
class Run:
    """A run as its supervisor has it, from `low_water` on as consumed.json says."""

    name: str
    policy: GrowthPolicy
    global_batch: int
    steps: int
    keep_last: int
    ahead: int
    plan: Plan = field(default_factory=lambda: Plan((), "0" * 64))
    timelines: Timelines = field(default_factory=Timelines)
    checkpoints: list[Checkpoint] = field(default_factory=list)  # of the current ancestry, by step
    history: list[Step] = field(default_factory=list)  # of the current ancestry
    skipped: set[Window] = field(default_factory=set)
    running: bool = False
    waiting: dict[str, float] = field(default_factory=dict)
    until: int | None = None  # the launch's last step, where it reads but a part of the plan
    low_water: Position = START
    reach: Position | None = None
    wants: tuple[str, ...] = ()
    finished: str | None = None

    @property
    def position(self) -> Position:
        return self.history[-1].position if self.history else START

    @property
    def committed(self) -> Checkpoint:
        """The newest proven checkpoint, or the beginning."""
        return self.checkpoints[-1] if self.checkpoints else Checkpoint(0, START, Plan((), "0" * 64))

    @property
    def holdings(self) -> Holdings:
        return Holdings(self.name, self.plan, self.low_water, self.wants, self.finished, reach=self.reach)

    def append(self, entry: Entry) -> None:
        line = canonical_json({**entry.body(), "prev": self.plan.head})
        self.plan = self.plan.followed_by(entry, hashlib.sha256(line).hexdigest())


@dataclass
class World:
    """Everything; each method is one thing that a daemon does, or that happens to it."""

    total_bytes: int
    floor_bytes: int
    target_bytes: int
    checkpoint_bytes: int
    keep_sets: int
    sources: list[WorldSource] = field(default_factory=list)
    complete: bool = False
    runs: list[Run] = field(default_factory=list)
    hydrating: set[str] = field(default_factory=set)
    warm_away: bool = False
    now: float = 0.0

    # The stage-shard loop

    def list_more(self, tokens: Iterable[int]) -> None:
        """Sources are added behind the listing's end."""
        for count in tokens:
            self.sources.append(WorldSource(f"s{len(self.sources):02}", count))
        self.complete = False

    def seal(self, source: WorldSource) -> bool:
        """Build a source's set, if there is room for it."""
        if self.room() < source.bytes:
            return False
        source.state, source.here = "proven", True
        self.now += 1.0
        source.arrived = self.now
        return True

    def sync(self, source: WorldSource) -> None:
        source.state, source.warm = "synced", True

    def wanted_free(self) -> int:
        """As the loop reckons: the target, or what is needed now by hydrations and the next staged file."""
        _, needed = self._to_hydrate()
        staged = next((source.bytes for source in self.sources if source.state == "pending"), 0)
        return max(self.target_bytes, self.floor_bytes + needed + staged)

    def to_evict(self) -> list[str]:
        holdings = [run.holdings for run in self.runs]
        keys, why = residency.to_evict(
            self.shard_sets(),
            holdings,
            residency.next_use(holdings, [one.key for one in self.sources if one.published]),
            free_bytes=self.free_for_evictor(),
            wanted_free_bytes=self.wanted_free(),
            keep_sets=self.keep_sets,
            reserve_bytes=self.floor_bytes,
            busy=self.hydrating,
        )
        leaving = sum(self.source(key).bytes for key in keys)
        assert (why == "") == (self.free_for_evictor() + leaving >= self.wanted_free())
        return keys

    def evict(self, keys: Iterable[str]) -> None:
        """Write the intent to evict."""
        for key in keys:
            self.source(key).evicting = True

    def finish_eviction(self, source: WorldSource, *, good: bool = True) -> None:
        """The copy on warm is proven and the set leaves; or the copy is bad and it stays to be synced."""
        source.evicting = False
        if good:
            source.evicted, source.here = True, False
        else:
            source.state, source.warm = "proven", False

    def hydrate(self) -> list[str]:
        """Begin to bring sets back; they are claimed from now on."""
        keys, _ = self._to_hydrate()
        keys = [key for key in keys if not self.source(key).evicting]
        self.hydrating.update(keys)
        return keys

    def finish_hydration(self, source: WorldSource, *, good: bool = True) -> None:
        self.hydrating.discard(source.key)
        if good:
            source.evicted, source.here = False, True
        else:
            source.renew()

    def rot(self, source: WorldSource) -> None:
        """A set on hot turns out damaged: trainers that read it die, and it is restored."""
        for run in self.runs:
            if run.running and source.key in self.keys_from(run, run.position, run.reach):
                self.crash(run)
        if source.warm:
            source.evicted, source.here = True, False
        else:
            source.renew()

    # The supervisors

    def start(self, run: Run) -> bool:
        """A run begins once its checkpoints' room is there to claim."""
        if self.room() < 2 * self.checkpoint_bytes:
            return False
        self.runs.append(run)
        return True

    def decide(self, run: Run) -> growth.Growth:
        consumed = run.plan.windows - left_after(run.plan, run.position, skips(run.timelines))
        ahead = max(run.ahead, growth.AHEAD_BATCHES * run.global_batch)
        return decide(
            run.plan,
            [self._standing(source) for source in self.sources],
            complete=self.complete,
            target=consumed + min(ahead, max(0, run.steps - len(run.history)) * run.global_batch),
            policy=run.policy,
            now=self.now,
            waiting=run.waiting,
        )

    def tell_wants(self, run: Run) -> None:
        """Write consumed.json: how far a launch will go, and what is needed hot, most urgent first."""
        if not run.running:
            run.reach = self._reach(run)
        needed = dict.fromkeys(self.keys_from(run, run.committed.position, run.reach))
        cold = [key for key in needed if not self.source(key).hot]
        later = [] if run.reach is None else self.keys_from(run, run.reach)
        found = self.decide(run)
        fresh = [entry for entry in found.entries if isinstance(entry, Segment)]
        named = [key for key, _ in (*(pair for entry in fresh for pair in entry.sets), *found.coming)]
        run.wants = () if run.finished else tuple(dict.fromkeys((*cold, *later, *named)))

    def grow(self, run: Run) -> tuple[Entry, ...]:
        """Append what may be named now."""
        found = self.decide(run)
        run.waiting = dict(found.waiting)
        for entry in found.entries:
            run.append(entry)
        return found.entries

    def launch(self, run: Run) -> bool:
        """Start the trainer if all that it will read is on hot."""
        begin, passed_over = run.committed, skips(run.timelines)
        if not all(self.source(key).hot for key in self.keys_from(run, begin.position, run.reach)):
            return False
        run.running, run.until = True, None
        if run.reach is not None:
            windows = left_after(run.plan, begin.position, passed_over)
            windows -= left_after(run.plan, run.reach, passed_over)
            run.until = begin.step + windows // run.global_batch
        return True

    def train(self, run: Run, steps: int) -> int:
        """Make up to so many steps; returns how many there was data for."""
        passed_over = skips(run.timelines)
        last = run.steps if run.until is None else min(run.steps, run.until)
        for made in range(steps):
            if len(run.history) >= last:
                return made
            pieces = take(run.plan, run.position, run.global_batch, passed_over)
            if pieces is None:
                return made
            windows = tuple((entry, offset) for entry, offsets in pieces for offset in offsets)
            run.history.append(Step(windows, after(pieces, run.position)))
        return steps

    def checkpoint(self, run: Run) -> None:
        """Seal and prove a checkpoint of where the trainer is, and account for it."""
        if run.committed.step < len(run.history):
            run.checkpoints.append(Checkpoint(len(run.history), run.position, run.plan))
        self._account(run)
        if run.finished or len(run.history) == run.until:
            run.running = False
        if run.finished:
            run.wants = ()

    def crash(self, run: Run) -> None:
        """The trainer dies: all after the newest checkpoint is lost; the plan is compared with its copy."""
        run.running = False
        del run.history[run.committed.step :]
        copy = run.committed.plan
        for n in lost_lines("the plan", run.plan.hashes, copy.hashes):
            run.append(copy.entries[n])
            assert run.plan.head == copy.hashes[n]
        self._account(run)

    def lose_plan(self, run: Run, length: int) -> None:
        """plan.jsonl is put back from an old copy, in the middle of a run."""
        run.running = False
        kept = run.plan.entries[:length], run.plan.hashes[:length]
        run.plan = Plan(kept[0], kept[1][-1] if kept[1] else "0" * 64, kept[1])

    def roll_back(self, run: Run, to: Checkpoint | None, skip: Iterable[tuple[int, int]]) -> None:
        """Give up the steps after a checkpoint (None: all of them), and pass over the windows of some."""
        self.crash(run)
        step = to.step if to else 0
        place = [START, *(one.position for one in run.history)]
        spans = [(first, last) for first, last in skip if step <= first < last <= len(run.history)]
        run.skipped.update(
            window for first, last in spans for one in run.history[first:last] for window in one.windows
        )
        number = len(run.timelines.forks) + 1
        passed_over = tuple((place[first], place[last]) for first, last in spans)
        fork = Timeline(number, run.timelines.current, step, passed_over, "test")
        run.timelines = Timelines((*run.timelines.forks, fork))
        run.checkpoints = [one for one in run.checkpoints if one.step <= step]
        del run.history[step:]
        run.finished = None
        self._account(run)

    # What there is

    def source(self, key: str) -> WorldSource:
        return next(source for source in self.sources if source.key == key)

    def shard_sets(self) -> list[ShardSet]:
        return [
            ShardSet(one.key, one.bytes, one.tokens, one.hot, one.warm)
            for one in self.sources
            if one.published
        ]

    @property
    def used_bytes(self) -> int:
        return sum(source.bytes for source in self.sources if source.here)

    def claims(self) -> list[Claim]:
        back = sum(self.source(key).bytes for key in self.hydrating)
        saving = 2 * self.checkpoint_bytes * len(self.runs)
        return [Claim(DEVICE, "/hot", "checkpoints", saving), Claim(DEVICE, "/hot", "sets", back)]

    def disk(self) -> Disk:
        return Disk(DEVICE, self.total_bytes, self.total_bytes - self.used_bytes)

    def room(self) -> int:
        return room(self.disk(), self.claims(), floor_bytes=self.floor_bytes)

    def free_for_evictor(self) -> int:
        """Free bytes less claims, with what is leaving already."""
        leaving = sum(source.bytes for source in self.sources if source.evicting)
        return room(self.disk(), self.claims()) + leaving

    def keys_from(self, run: Run, position: Position, upto: Position | None = None) -> list[str]:
        segments = residency.reaching(run.plan, position)
        return [key for one in segments if upto is None or one.n < upto.entry for key, _ in one.sets]

    def _reach(self, run: Run) -> Position | None:
        """How far a launch goes by what is on hot: at least a batch, which is what it takes to go on."""
        return residency.reach_from(
            run.plan,
            run.committed.position,
            lambda segment: all(self.source(key).hot for key, _ in segment.sets),
            least_windows=run.global_batch,
            skips=skips(run.timelines),
        )

    def _to_hydrate(self) -> tuple[list[str], int]:
        return residency.to_hydrate(
            self.shard_sets(),
            [run.holdings for run in self.runs],
            room_bytes=self.room(),
            at_once=2,
            busy=self.hydrating,
        )

    def _standing(self, source: WorldSource) -> PlanSource:
        digest = hashlib.sha256(b"manifest " + source.path.encode()).hexdigest()
        known = (source.key, digest) if source.published else (None, None)
        return PlanSource.of(
            source.path, source.state, *known, source.tokens, hot=source.hot, arrived=source.arrived
        )

    def _account(self, run: Run) -> None:
        """What consumed.json says at a checkpoint, or before a launch."""
        last = [one.position for one in run.checkpoints[-run.keep_last :]]
        run.low_water = residency.low_water(run.plan, last)
        at = run.committed
        run.finished = finished_at(
            at.step,
            at.position,
            run.plan,
            steps=run.steps,
            global_batch=run.global_batch,
            skips=skips(run.timelines),
        )
