"""What leaves the hot disk and what comes back: nothing a run reads, the least needed first, no deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stoker.plan.consumption import Holdings
from stoker.plan.growth import AHEAD_BATCHES
from stoker.plan.log import End, Passed, Plan
from stoker.plan.positions import START, Position
from stoker.plan.residency import (
    ShardSet,
    ahead_windows,
    due_s,
    held,
    low_water,
    next_use,
    planned,
    reach_from,
    reaching,
    to_evict,
    to_hydrate,
)
from support.plan_data import fake_set, plan_of, segment


def key(name: str) -> str:
    return fake_set(name)[0]


def keys(names: str) -> list[str]:
    return [key(name) for name in names]


def plan(*entries: str, windows: int = 10, end: bool = False) -> Plan:
    """One segment a word, each letter a set, one epoch a blank-free word: 'ab cd' are two entries."""
    named = [segment(n, windows, sets=[fake_set(name) for name in word]) for n, word in enumerate(entries)]
    return plan_of(*named, *([End(len(named))] if end else []))


def a_set(name: str, *, size: int = 100, tokens: int = 50, hot: bool = True, warm: bool = True) -> ShardSet:
    return ShardSet(key(name), size, tokens, hot, warm)


def sets(names: str, *, cold: str = "", bare: str = "", size: int = 100) -> list[ShardSet]:
    return [a_set(name, size=size, hot=name not in cold, warm=name not in bare) for name in names]


def evicted(
    all_sets: Sequence[ShardSet],
    runs: Sequence[Holdings],
    wanted: int,
    *,
    free: int = 0,
    listing: str = "abcdefgh",
    keep_sets: int = 0,
    reserve: int = 0,
    busy: str = "",
) -> tuple[str, str]:
    chosen, why = to_evict(
        all_sets,
        runs,
        next_use(runs, keys(listing)),
        free_bytes=free,
        wanted_free_bytes=wanted,
        keep_sets=keep_sets,
        reserve_bytes=reserve,
        busy=keys(busy),
    )
    names = {key(name): name for name in "abcdefgh"}
    return "".join(names[one] for one in chosen), why


def test_a_segment_reaching_over_the_mark_is_held_and_one_that_ends_at_it_is_not() -> None:
    at_end = Holdings("r", plan("ab", "cd"), Position(0, 10))
    same_place = Holdings("r", plan("ab", "cd"), Position(1, 0))
    before_end = Holdings("r", plan("ab", "cd"), Position(0, 9))
    assert planned([at_end]) == planned([same_place]) == frozenset(keys("cd"))
    assert planned([before_end]) == frozenset(keys("abcd"))


def test_a_run_holds_its_wants_too_and_without_a_plan_only_these() -> None:
    assert held([Holdings("r", plan_of(), wants=tuple(keys("ab")))]) == frozenset(keys("ab"))
    assert held([Holdings("r", plan("c"), wants=tuple(keys("ab")))]) == frozenset(keys("abc"))
    assert held([]) == frozenset()


def test_a_finished_run_holds_nothing_and_another_run_still_does() -> None:
    done = Holdings("r", plan("ab"), wants=tuple(keys("c")), finished="steps")
    going = Holdings("s", plan("bc"), Position(0, 3))
    assert held([done]) == frozenset()
    assert held([done, going]) == frozenset(keys("bc"))


def test_a_set_named_again_by_a_later_epoch_is_held_until_that_entry_is_behind() -> None:
    twice = plan_of(segment(0, 10, sets=[fake_set("a")]), segment(1, 10, epoch=1, sets=[fake_set("a")]))
    assert planned([Holdings("r", twice, Position(0, 10))]) == frozenset(keys("a"))
    assert planned([Holdings("r", twice, Position(1, 10))]) == frozenset()


def test_a_mark_that_the_plan_has_lost_holds_all_that_is_left_of_it() -> None:
    assert planned([Holdings("r", plan("ab"), Position(3, 5))]) == frozenset(keys("ab"))


def test_reaching_passes_over_entries_without_windows() -> None:
    mixed = plan_of(segment(0, 4), Passed(1, "x", "quarantined"), segment(2, 4), End(3))
    assert [entry.n for entry in reaching(mixed, START)] == [0, 2]
    assert [entry.n for entry in reaching(mixed, Position(0, 4))] == [2]
    assert list(reaching(mixed, Position(3, 0))) == []
    assert list(reaching(plan_of(), START)) == []
    assert [entry.n for entry in reaching(plan_of(segment(0, 0), segment(1, 4), segment(2, 0)), START)] == [1]


def test_the_next_use_goes_by_wants_then_the_plan_then_this_epoch_and_the_next() -> None:
    run = Holdings("r", plan("b", "c"), Position(0, 10), wants=tuple(keys("e")))
    ranks = next_use([run], keys("abcde"))
    assert sorted(ranks, key=lambda one: ranks[one]) == keys("ecad") + keys("b")


def test_a_set_that_a_part_ended_in_is_used_before_the_rest_of_the_epoch() -> None:
    first, last = plan("a", "bc").segments
    run = Holdings("r", plan_of(first, replace(last, dataset="web")), Position(1, 10))
    ranks = next_use([run], keys("abcd"))
    assert sorted(ranks, key=lambda one: ranks[one]) == keys("cdab")


def test_after_the_end_of_its_plan_a_run_uses_nothing_more() -> None:
    run = Holdings("r", plan("a", "b", end=True), Position(0, 10))
    assert next_use([run], keys("ab")) == {key("b"): 0}


def test_of_several_runs_the_nearest_use_counts_and_finished_ones_have_none() -> None:
    early = Holdings("r", plan("a"), Position(0, 10))
    late = Holdings("s", plan("a", "b", "c"), Position(2, 5))
    done = Holdings("t", plan("d"), wants=tuple(keys("d")), finished="steps")
    ranks = next_use([early, late, done], keys("abcd"))
    assert ranks == {key("b"): 0, key("c"): 0, key("d"): 1, key("a"): 2}


def test_the_furthest_next_use_goes_first_and_only_as_much_as_is_wanted() -> None:
    run = Holdings("r", plan("a", "b", "c"), Position(1, 10))  # a and b are behind; c is read; then d, a, b
    assert evicted(sets("abcd"), [run], 100) == ("b", "")
    assert evicted(sets("abcd"), [run], 101) == ("ba", "")
    assert evicted(sets("abcd"), [run], 101, free=1) == ("b", "")
    assert evicted(sets("abcd"), [run], 50, free=50) == ("", "")


def test_what_is_never_used_again_goes_before_all_else() -> None:
    run = Holdings("r", plan("a", "b"), Position(0, 10))
    assert evicted(sets("abh"), [run], 1, listing="ab") == ("h", "")


def test_planned_sets_never_leave_and_the_reason_is_told() -> None:
    run = Holdings("r", plan("ab"), START)
    assert evicted(sets("ab"), [run], 150) == (
        "",
        "150 bytes short; of 2 shard sets on hot 2 planned to be read",
    )


def test_a_set_without_a_proven_warm_copy_stays() -> None:
    chosen, why = evicted(sets("ab", bare="b"), [], 200)
    assert chosen == "a"
    assert why == "100 bytes short; of 1 shard sets on hot 1 without a proven warm copy"


def test_a_set_that_is_cold_or_leaving_already_is_not_evicted_again() -> None:
    assert evicted(sets("ab", cold="ab"), [], 100) == (
        "",
        "100 bytes short; of 0 shard sets on hot none is there",
    )


def test_the_last_sets_stay_on_hot() -> None:
    assert evicted(sets("abc"), [Holdings("r", plan_of())], 300, keep_sets=2)[0] == "c"
    assert evicted(sets("abc"), [], 300, keep_sets=3) == (
        "",
        "300 bytes short; of 3 shard sets on hot 3 kept by evict.keep_hot_sets",
    )


def test_wanted_sets_stay_for_the_mere_sake_of_free_space() -> None:
    run = Holdings("r", plan_of(), wants=tuple(keys("ab")))
    assert evicted(sets("ab"), [run], 100) == ("", "100 bytes short; of 2 shard sets on hot 2 wanted next")


def test_the_least_urgent_wanted_set_gives_way_to_a_more_urgent_one_that_is_cold() -> None:
    run = Holdings("r", plan_of(), wants=tuple(keys("abc")))
    assert evicted(sets("abc", cold="a"), [run], 500)[0] == "c"
    assert evicted(sets("abc", cold="b"), [run], 500)[0] == "c"
    assert evicted(sets("abc", cold="c"), [run], 500)[0] == ""
    assert evicted(sets("abc", cold="a"), [run], 500, free=100)[0] == ""
    assert evicted(sets("abc", cold="a"), [run], 500, free=100, reserve=50)[0] == "c"
    assert evicted(sets("abc", cold="a"), [run], 500, busy="a")[0] == ""


def test_runs_that_want_different_sets_take_turns() -> None:
    runs = [
        Holdings("r", plan_of(), wants=tuple(keys("abc"))),
        Holdings("s", plan_of(), wants=tuple(keys("de"))),
    ]
    assert to_hydrate(sets("abcde", cold="abcde"), runs, room_bytes=500, at_once=9, busy=()) == (
        keys("adbec"),
        0,
    )


def test_sets_come_back_in_the_order_of_wants_as_far_as_there_is_room() -> None:
    run = Holdings("r", plan_of(), wants=tuple(keys("cab")))
    cold = sets("abc", cold="abc")
    assert to_hydrate(cold, [run], room_bytes=200, at_once=9, busy=()) == (keys("ca"), 100)
    assert to_hydrate(cold, [run], room_bytes=99, at_once=9, busy=()) == ([], 300)
    assert to_hydrate(cold, [run], room_bytes=-5, at_once=9, busy=()) == ([], 300)


def test_a_big_set_that_does_not_fit_is_not_overtaken() -> None:
    run = Holdings("r", plan_of(), wants=tuple(keys("ab")))
    cold = [a_set("a", size=300, hot=False), a_set("b", size=10, hot=False)]
    assert to_hydrate(cold, [run], room_bytes=100, at_once=9, busy=()) == ([], 310)


def test_only_so_many_are_under_way_and_those_are_not_asked_for_again() -> None:
    run = Holdings("r", plan_of(), wants=tuple(keys("abc")))
    cold = sets("abc", cold="abc")
    assert to_hydrate(cold, [run], room_bytes=900, at_once=2, busy=keys("a")) == (keys("b"), 100)
    assert to_hydrate(cold, [run], room_bytes=900, at_once=2, busy=keys("ab")) == ([], 100)


def test_what_is_hot_unknown_or_has_no_warm_copy_is_not_brought_back() -> None:
    run = Holdings("r", plan_of(), wants=tuple(keys("abcd")))
    some = [a_set("a"), a_set("b", hot=False, warm=False), a_set("c", hot=False)]
    assert to_hydrate(some, [run], room_bytes=900, at_once=9, busy=()) == (keys("c"), 0)
    done = Holdings("r", plan_of(), wants=tuple(keys("c")), finished="steps")
    assert to_hydrate(some, [done], room_bytes=900, at_once=9, busy=()) == ([], 0)


def test_the_low_water_mark_is_the_least_position() -> None:
    two = plan("a", "b")
    assert low_water(two, []) == START
    assert low_water(two, [Position(1, 3), Position(0, 9), Position(1, 0)]) == Position(0, 9)


def test_the_plan_reaches_further_ahead_for_a_faster_trainer() -> None:
    assert ahead_windows(global_batch=4, windows_per_s=None, lead_s=600) == 4 * AHEAD_BATCHES
    assert ahead_windows(global_batch=4, windows_per_s=0.1, lead_s=60) == 4 * AHEAD_BATCHES
    assert ahead_windows(global_batch=4, windows_per_s=10.0, lead_s=600) == 6000


def test_an_entry_is_due_when_the_windows_before_it_are_used_up() -> None:
    three = plan("a", "b", "c")
    assert due_s(three, Position(0, 4), 2, 2.0) == pytest.approx(8.0)
    assert due_s(three, Position(2, 4), 1, 2.0) == 0.0
    assert due_s(three, START, 3, 2.0) == pytest.approx(15.0)
    assert due_s(three, START, 2, None) is None
    skipped = [(Position(0, 5), Position(1, 5))]
    assert due_s(three, Position(0, 4), 2, 2.0, skipped) == pytest.approx(3.0)
    assert due_s(plan_of(), START, 0, 2.0) == 0.0


PARTS = plan_of(*(segment(n, 10, sets=[fake_set(f"part-{n}")]) for n in range(6)))


@pytest.mark.parametrize(
    ("position", "hot", "least", "reach"),
    [
        (START, "012345", 5, None),  # nothing lacks: as far as the plan goes
        (START, "0", 5, Position(1, 0)),  # the first is enough
        (START, "", 5, Position(1, 0)),  # what is needed at least, though it has to come back first
        (START, "012", 5, Position(3, 0)),  # and on while all is there
        (START, "0123", 15, Position(4, 0)),
        (START, "1234", 5, Position(1, 0)),  # what lies behind a gap does not count
        (START, "02345", 15, Position(2, 0)),
        (Position(1, 6), "1", 5, Position(3, 0)),  # four windows of it are left: the next is needed too
        (Position(4, 0), "4", 99, None),  # the whole rest is needed
    ],
)
def test_where_hot_cannot_hold_the_plan_a_launch_reaches_as_far_as_it_does(
    position: Position, hot: str, least: int, reach: Position | None
) -> None:
    found = reach_from(PARTS, position, lambda one: str(one.n) in hot, least_windows=least)
    assert found == reach


def test_what_is_skipped_does_not_count_for_a_launchs_reach() -> None:
    skip = (Position(0, 0), Position(1, 8))
    found = reach_from(PARTS, START, lambda one: False, least_windows=5, skips=[skip])
    assert found == Position(3, 0)


def test_planned_sets_beyond_a_runs_reach_may_leave() -> None:
    run = Holdings("main", PARTS, Position(1, 3), reach=Position(3, 0))
    assert planned([run]) == {fake_set(f"part-{n}")[0] for n in (1, 2)}
    uses = next_use([run], [])
    assert uses[fake_set("part-5")[0]] > uses[fake_set("part-3")[0]], "it is still known when each is due"
