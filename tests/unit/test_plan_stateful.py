"""Whatever happens to runs on a small disk: each window once, nothing needed gone, no standstill.

STOKER_PLAN_EXAMPLES=20000 makes it a long search; by itself it is a short one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, currently_in_test_context, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stoker.plan import draft, growth, positions, residency
from stoker.plan.growth import Cut, GrowthPolicy
from stoker.plan.residency import urgency
from stoker.plan.timelines import Timelines
from support import plan_laws as laws
from support import plan_world
from support.plan_world import Run, World, WorldSource

EXAMPLES = int(os.environ.get("STOKER_PLAN_EXAMPLES", "30"))
MOST_SOURCES, MOST_STEPS, ROUNDS = 14, 60, 400

pytestmark = pytest.mark.timeout(180 + EXAMPLES)

which = st.integers(0, 99)  # picks one of what there is
tokens = st.integers(0, 12)
worlds = st.builds(
    World,
    total_bytes=st.integers(40, 115),
    floor_bytes=st.integers(0, 6),
    target_bytes=st.integers(0, 20),
    checkpoint_bytes=st.integers(0, 4),
    keep_sets=st.integers(0, 3),
)
cuts = st.lists(st.builds(Cut, windows=st.integers(1, 40), seq_len=st.integers(1, 6)), max_size=3).map(
    lambda found: tuple(sorted(found, key=lambda cut: cut.windows))
)
policies = st.builds(
    GrowthPolicy,
    seed=st.integers(0, 3),
    seq_len=st.integers(1, 4),
    segment_tokens=st.integers(1, 16),
    order=st.sampled_from(["listing", "arrival"]),
    hold_s=st.just(20.0),
    epochs=st.sampled_from([1, 2, 3, None]),
    first_segment_tokens=st.sampled_from([None, 1, 8]),
    run_id=st.sampled_from(["id-a", "id-b"]),
    dataset=st.just("data"),
    cuts=cuts,
)
runs = st.builds(
    Run,
    name=st.just("run"),
    policy=policies,
    global_batch=st.integers(1, 4),
    steps=st.integers(1, MOST_STEPS),
    keep_last=st.integers(1, 3),
    ahead=st.integers(0, 30),
)


class Histories(RuleBasedStateMachine):
    """One pipeline of up to two runs; every rule is something a daemon does or that happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.world = World(0, 0, 0, 0, 0)

    @initialize(
        world=worlds,
        listed=st.lists(tokens, min_size=4, max_size=12),
        ahead=st.integers(1, 6),
        run=runs,
        turns=st.integers(0, 25),
    )
    def begin(self, world: World, listed: list[int], ahead: int, run: Run, turns: int) -> None:
        self.patch.setattr(growth, "AHEAD_BATCHES", ahead)
        self.world = world
        world.list_more(listed)
        world.start(run)
        self.go_on(turns)

    @rule(turns=st.integers(1, 6))
    def go_on(self, turns: int) -> None:
        """All goes well for a while."""
        if not self.world.warm_away:
            for _ in range(turns):
                self._round()

    # The stage-shard loop

    @precondition(lambda self: self.those("pending"))
    @rule(n=which)
    def seal(self, n: int) -> None:
        self.world.seal(pick(self.those("pending"), n))

    @precondition(lambda self: self.unplanned())
    @rule(n=which)
    def reject(self, n: int) -> None:
        pick(self.unplanned(), n).state = "quarantined"

    @precondition(lambda self: len(self.world.sources) < MOST_SOURCES)
    @rule(listed=st.lists(tokens, min_size=1, max_size=3))
    def list_more(self, listed: list[int]) -> None:
        self.world.list_more(listed)

    @rule()
    def end_listing(self) -> None:
        self.world.complete = True

    @precondition(lambda self: self.those("proven") and not self.world.warm_away)
    @rule(n=which)
    def sync(self, n: int) -> None:
        self.world.sync(pick(self.those("proven"), n))

    @rule()
    def evict(self) -> None:
        for _ in self.world.sources:
            keys = self.world.to_evict()
            laws.check_evicted(self.world, keys)
            if not keys:
                break
            self.world.evict(keys)
        if self.world.free_for_evictor() < self.world.wanted_free():
            assert not laws.evictable(self.world), "eviction stalls though something may leave"

    @precondition(lambda self: self.leaving() and not self.world.warm_away)
    @rule(n=which, bad=st.integers(0, 9))
    def finish_eviction(self, n: int, bad: int) -> None:
        self.world.finish_eviction(pick(self.leaving(), n), good=bad > 0)

    @precondition(lambda self: not self.world.warm_away)
    @rule()
    def hydrate(self) -> None:
        self.world.hydrate()
        laws.check_disk(self.world)

    @precondition(lambda self: self.world.hydrating and not self.world.warm_away)
    @rule(n=which, bad=st.integers(0, 9))
    def finish_hydration(self, n: int, bad: int) -> None:
        key = pick(sorted(self.world.hydrating), n)
        self.world.finish_hydration(self.world.source(key), good=bad > 0)

    @precondition(lambda self: self.world.hydrating)
    @rule()
    def kill_the_loop(self) -> None:
        self.world.hydrating.clear()

    @precondition(lambda self: self.hot())
    @rule(n=which)
    def rot(self, n: int) -> None:
        self.world.rot(pick(self.hot(), n))

    @rule(away=st.booleans())
    def warm_goes_or_comes(self, away: bool) -> None:
        self.world.warm_away = away

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    # The supervisors

    @precondition(lambda self: len(self.world.runs) < 2)
    @rule(run=runs)
    def start_second_run(self, run: Run) -> None:
        run.name += " too"
        self.world.start(run)

    @precondition(lambda self: self.going())
    @rule(n=which)
    def tick(self, n: int) -> None:
        self._tick(pick(self.going(), n))

    @precondition(lambda self: self.going())
    @rule(n=which, steps=st.integers(1, 8))
    def train(self, n: int, steps: int) -> None:
        run = pick(self.going(), n)
        if not run.running:
            self._tick(run)
            self.world.launch(run)
            laws.check_trainer_can_read(self.world, run)
        if run.running:
            self.world.train(run, steps)

    @precondition(lambda self: self.training())
    @rule(n=which)
    def checkpoint(self, n: int) -> None:
        self.world.checkpoint(pick(self.training(), n))

    @precondition(lambda self: self.going())
    @rule(n=which)
    def crash(self, n: int) -> None:
        self.world.crash(pick(self.going(), n))

    @precondition(lambda self: any(run.history for run in self.world.runs))
    @rule(n=which, back=st.integers(0, 20), skip=st.lists(st.tuples(which, which), max_size=2))
    def roll_back(self, n: int, back: int, skip: list[tuple[int, int]]) -> None:
        run = pick([run for run in self.world.runs if run.history], n)
        self.world.crash(run)
        targets = [None, *run.checkpoints]
        target = targets[max(0, len(targets) - 1 - back)]
        first = target.step if target else 0
        span = len(run.history) - first + 1
        spans = [tuple(sorted((first + a % span, first + b % span))) for a, b in skip]
        self.world.roll_back(run, target, spans)

    @precondition(lambda self: self.world.runs)
    @rule(n=which, batch=st.integers(1, 4), seq_len=st.integers(1, 4))
    def change_settings(self, n: int, batch: int, seq_len: int) -> None:
        run = pick(self.world.runs, n)
        run.global_batch, run.policy = batch, replace(run.policy, seq_len=seq_len)
        self.world.crash(run)

    @precondition(lambda self: self.world.runs)
    @rule(n=which, ahead=st.integers(0, 12), seq_len=st.integers(1, 6))
    def begin_a_phase(self, n: int, ahead: int, seq_len: int) -> None:
        """A phase of another seq_len is configured: from a later window on, or from what comes next."""
        run = pick(self.world.runs, n)
        begun = max([run.plan.windows, *(cut.windows for cut in run.policy.cuts)])
        run.policy = replace(run.policy, cuts=(*run.policy.cuts, Cut(begun + ahead, seq_len)))
        self.world.crash(run)

    @precondition(lambda self: self.world.runs)
    @rule(n=which, more=st.integers(1, 10), epochs=st.sampled_from([2, 4, None]))
    def extend(self, n: int, more: int, epochs: int | None) -> None:
        run = pick(self.world.runs, n)
        run.policy = replace(run.policy, epochs=epochs)
        run.steps = min(run.steps + more, MOST_STEPS)
        self.world.crash(run)

    @precondition(lambda self: self.going())
    @rule(n=which, length=which)
    def lose_the_plans_end(self, n: int, length: int) -> None:
        run = pick(self.going(), n)
        forked = [last.entry + 1 for fork in run.timelines.forks for _, last in fork.skip]
        least = max(forked, default=0)
        self.world.lose_plan(run, least + length % (len(run.plan.entries) - least + 1))
        self.world.to_evict()  # an evictor may look just now
        self.world.crash(run)

    # The laws

    @invariant()
    def the_laws_hold(self) -> None:
        laws.check_disk(self.world)
        for run in self.world.runs:
            laws.check_history(run)
            laws.check_plan(self.world, run)
            laws.check_trainer_can_read(self.world, run)

    def teardown(self) -> None:
        """From wherever it got to, the pipeline runs on to its runs' ends: nothing stands still for ever."""
        try:
            if self.world.total_bytes:
                self._settle()
                self.the_laws_hold()
        finally:
            self.patch.undo()

    def _settle(self) -> None:
        world = self.world
        world.warm_away, world.complete = False, True
        still = 0
        for _ in range(ROUNDS):
            if all(run.finished for run in world.runs):
                count(f"{len(world.runs)} runs came to their ends")
                return
            before = self._state()
            self._round()
            self.the_laws_hold()
            still = still + 1 if self._state() == before else 0
            if still == 3:
                assert self._too_small(), "the pipeline stands still"
                count("the disk is too small for what must be on it at once")
                return
        raise AssertionError(f"the runs have not ended after {ROUNDS} rounds")

    def _round(self) -> None:
        """A turn of every loop, all going well."""
        world = self.world
        world.now += 30.0
        for run in self.going():
            self._tick(run)
        self.evict()
        for source in self.leaving():
            world.finish_eviction(source)
        for key in [*world.hydrate(), *world.hydrating]:
            world.finish_hydration(world.source(key))
        for source in self.those("pending")[:1]:
            world.seal(source)
        for source in self.those("proven"):
            if source.hot:
                world.sync(source)
        for run in self.going():
            self._tick(run)
            if run.running or world.launch(run):
                world.train(run, 2)
                world.checkpoint(run)

    def _tick(self, run: Run) -> None:
        known = len(run.plan.entries)
        self.world.tell_wants(run)
        laws.check_needs_are_told(self.world, run)
        self.world.grow(run)
        laws.check_appended(self.world, run, known)

    def _too_small(self) -> bool:
        """Whether the next thing to come does not fit beside what must not leave, and all else has left."""
        world = self.world
        wants = urgency(run.holdings for run in world.runs)
        cold = [n for n, key in enumerate(wants) if world.source(key).evicted][:1]
        coming = [*(world.source(wants[n]) for n in cold), *self.those("pending")[:1]]
        urgent = wants[: cold[0]] if cold else wants
        in_the_way = laws.evictable(world, lambda _: urgent, laws.least_keys)
        return bool(coming) and not in_the_way and all(world.room() < one.bytes for one in coming)

    def _state(self) -> object:
        runs = [(len(run.plan.entries), len(run.history), run.wants, run.running) for run in self.world.runs]
        return runs, [(one.state, one.here, one.warm) for one in self.world.sources]

    def those(self, state: str) -> list[WorldSource]:
        return [source for source in self.world.sources if source.state == state]

    def unplanned(self) -> list[WorldSource]:
        named = {key for run in self.world.runs for entry in run.plan.segments for key, _ in entry.sets}
        return [source for source in self.those("pending") if source.key not in named]

    def hot(self) -> list[WorldSource]:
        return [source for source in self.world.sources if source.hot]

    def leaving(self) -> list[WorldSource]:
        return [source for source in self.world.sources if source.evicting]

    def going(self) -> list[Run]:
        return [run for run in self.world.runs if not run.finished]

    def training(self) -> list[Run]:
        return [run for run in self.world.runs if run.running]


def count(ending: str) -> None:
    """Tell the search's statistics how a history ended."""
    if currently_in_test_context():
        event(ending)


def pick(of: Sequence[Any], n: int) -> Any:
    return of[n % len(of)]


Histories.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestHistories = Histories.TestCase


@pytest.mark.long
@pytest.mark.timeout(2 * 3600)
def test_a_long_random_search_finds_no_fault() -> None:
    many = settings(Histories.TestCase.settings, max_examples=20_000, database=None)
    run_state_machine_as_test(Histories, settings=many)


def evict_whatever_the_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(residency, "_planned", lambda run: iter(()))


def skip_a_window_too_few(patch: pytest.MonkeyPatch) -> None:
    whole = positions._skip_ranges
    patch.setattr(
        positions,
        "_skip_ranges",
        lambda plan, skips: [(a, b - 1) for a, b in whole(plan, skips) if b - 1 > a],
    )


def forget_the_skips_of_ancestors(patch: pytest.MonkeyPatch) -> None:
    def last_only(timelines: Timelines) -> object:
        return timelines.forks[-1].skip if timelines.forks else ()

    patch.setattr(plan_world, "skips", last_only)
    patch.setattr(laws, "skips", last_only)


def hydrate_without_room(patch: pytest.MonkeyPatch) -> None:
    in_bounds = residency.to_hydrate
    patch.setattr(
        residency, "to_hydrate", lambda *of, room_bytes, **how: in_bounds(*of, room_bytes=10**9, **how)
    )


def keep_every_wanted_set(patch: pytest.MonkeyPatch) -> None:
    told = residency._wants
    patch.setattr(
        residency,
        "_wants",
        lambda *of: dict.fromkeys(told(*of), 0),
    )


def wait_for_all_that_is_planned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(residency, "reach_from", lambda *of, **how: None)


def overtake_what_is_cold(patch: pytest.MonkeyPatch) -> None:
    strict = growth._scan
    patch.setattr(
        growth,
        "_scan",
        lambda sources, *how, **also: strict(
            [one for one in sources if one.standing != "cold"], *how, **also
        ),
    )


def begin_each_part_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft, "_rest", lambda last, sources: (None, 0))


def ask_only_for_what_is_named(patch: pytest.MonkeyPatch) -> None:
    add = draft.Draft.add_segment

    def add_and_forget(self: draft.Draft, epoch: int, chosen: Sequence[growth.PlanSource]) -> None:
        asked = len(self.chosen)
        add(self, epoch, chosen)
        self.chosen[asked:] = self.fresh[-1].sets  # type: ignore[union-attr]

    patch.setattr(draft.Draft, "add_segment", add_and_forget)


def plan_over_cuts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft.Draft, "_to_cut", lambda self: draft.NO_CUT)


SKIPPED = "a skipped window was trained on|applied, skipped and the rest are not the plan"


@dataclass(frozen=True)
class Found:
    """A planted fault, the law that finds it, and the smallest history in which the search met it."""

    fault: Callable[[pytest.MonkeyPatch], None]
    law: str
    listed: list[int]  # tokens of each source
    turns: int
    then: Callable[[Histories], object] = lambda state: None
    run: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    hot: int = 40  # bytes

    def replay(self) -> None:
        """Go through the history again; AssertionError where a law does not hold."""
        few = {"seq_len": 1, "epochs": 1, "dataset": "data", **self.policy}
        policy = GrowthPolicy(seed=0, segment_tokens=1, order="listing", hold_s=20.0, run_id="id-a", **few)
        run = Run("run", policy, **{"global_batch": 1, "steps": 1, "keep_last": 1, "ahead": 0, **self.run})
        state = Histories()
        try:
            state.begin(
                world=World(self.hot, 0, 0, 0, 0), listed=self.listed, ahead=1, run=run, turns=self.turns
            )
            state.the_laws_hold()
            self.then(state)
            state.the_laws_hold()
        finally:
            state.teardown()


def back_without(state: Histories) -> None:
    """A rollback to the beginning that skips the first step."""
    state.roll_back(n=0, back=1, skip=[(0, 1)])
    state.the_laws_hold()


def back_without_and_back_again(state: Histories) -> None:
    back_without(state)
    state.roll_back(n=0, back=0, skip=[])


def rot_what_the_next_epoch_needs(state: Histories) -> None:
    state.end_listing()
    state.rot(n=0)
    state.change_settings(n=0, batch=1, seq_len=1)
    state.train(n=0, steps=1)


FAULTS = [
    Found(
        evict_whatever_the_mark,
        "a planned set leaves hot",
        [0, 0, 0, 4, 6, 12, 12],
        turns=7,
        run={"steps": 6},
    ),
    Found(skip_a_window_too_few, SKIPPED, [0, 0, 0, 2], turns=4, then=back_without),
    Found(
        forget_the_skips_of_ancestors,
        SKIPPED,
        [0, 0, 0, 4],
        turns=5,
        then=back_without_and_back_again,
        run={"steps": 3},
    ),
    Found(hydrate_without_room, "the reserve is touched", [0, 8, 10, 10, 5, 12], turns=16, run={"steps": 26}),
    Found(
        keep_every_wanted_set,
        "the pipeline stands still",
        [0, 0, 0, 3, 9, 10, 12],
        turns=0,
        run={"global_batch": 2, "steps": 8, "keep_last": 3},
        policy={"seq_len": 2, "epochs": 2},
    ),
    Found(
        wait_for_all_that_is_planned,
        "the pipeline stands still",
        [0, 0, 0, 0, 11, 11, 12],
        turns=15,
        then=lambda state: state.roll_back(n=0, back=7, skip=[]),
        run={"steps": 21},
    ),
    Found(
        overtake_what_is_cold,
        "an epoch ends without a set that was there|a set was overtaken|an epoch is closed too early",
        [0, 0, 0, 0],
        turns=4,
        then=rot_what_the_next_epoch_needs,
    ),
]
CUT = {"cuts": (Cut(2, 2),)}
FAULTS += [
    Found(
        begin_each_part_anew, "no target, or twice|the tail is", [0, 0, 9, 9], 7, run={"steps": 9}, policy=CUT
    ),
    Found(plan_over_cuts, "an entry reaches over a cut", [0, 0, 0, 9], turns=7, policy=CUT),
    Found(
        ask_only_for_what_is_named,
        "the pipeline stands still",
        [0, 0, 10, 10, 10, 0, 3, 11, 12, 9, 9],
        turns=0,
        hot=51,
        run={"global_batch": 2, "steps": 11, "keep_last": 3, "ahead": 6},
        policy={"seq_len": 4, "epochs": 2, "cuts": (Cut(22, 1),)},
    ),
]
each_fault = pytest.mark.parametrize("found", FAULTS, ids=lambda found: found.fault.__name__)


@each_fault
def test_a_fault_is_found_in_the_history_that_once_showed_it(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    found.replay()
    found.fault(monkeypatch)
    with pytest.raises(AssertionError, match=found.law):
        found.replay()


@pytest.mark.long
@each_fault
def test_a_random_search_finds_the_fault(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    found.fault(monkeypatch)
    few = settings(
        Histories.TestCase.settings,
        max_examples=500,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
    )
    with pytest.raises(AssertionError, match=found.law):
        run_state_machine_as_test(Histories, settings=few)
