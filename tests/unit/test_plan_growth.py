"""How the plan grows: each set once an epoch, nobody waited for in vain, and a clean end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.growth import AHEAD_BATCHES, Growth, GrowthPolicy, PlanSource, decide
from stoker.plan.log import End, Passed, Plan, Segment
from support.plan_data import fake_set, plan_of

POLICY = GrowthPolicy(seed=1, seq_len=10, segment_tokens=1000, hold_s=60.0)
FAR = 10**9


def ready(name: str, tokens: int = 500) -> PlanSource:
    key, manifest = fake_set(name)
    return PlanSource(name, "ready", key, manifest, tokens)


def pending(name: str) -> PlanSource:
    return PlanSource(name, "pending")


def grow(
    sources: Sequence[PlanSource],
    plan: Plan | None = None,
    *,
    complete: bool = False,
    whole: bool = False,
    consumed: int = 0,
    horizon: int = FAR,
    policy: GrowthPolicy = POLICY,
    now: float = 0.0,
    waiting: dict[str, float] | None = None,
    ahead: int = 0,
) -> Growth:
    return decide(
        plan or plan_of(),
        sources,
        complete=complete,
        whole=whole,
        target=min(horizon, consumed + max(ahead, 2 * AHEAD_BATCHES)),
        policy=policy,
        now=now,
        waiting=waiting,
    )


def cold(name: str, tokens: int = 500) -> PlanSource:
    return replace(ready(name, tokens), standing="cold")


def keys(names: str) -> tuple[str, ...]:
    return tuple(fake_set(name)[0] for name in names)


def names(growth: Growth) -> list[object]:
    """Segments as lists of set names, passed as (path, reason), the end as 'end'."""
    paths = {fake_set(name)[0]: name for name in "abcdefghm"}
    return [
        [paths[key] for key, _ in entry.sets]
        if isinstance(entry, Segment)
        else (entry.path, entry.reason)
        if isinstance(entry, Passed)
        else "end"
        for entry in growth.entries
    ]


def appended(plan: Plan, growth: Growth) -> Plan:
    return plan_of(*plan.entries, *growth.entries)


def test_a_segment_waits_for_its_tokens_while_more_data_may_come() -> None:
    assert names(grow([ready("a")])) == []
    assert names(grow([ready("a"), ready("b")])) == [["a", "b"]]


def test_windows_and_tail_are_those_of_the_concatenated_streams() -> None:
    (entry,) = grow([ready("a", 700), ready("b", 307)]).entries
    assert isinstance(entry, Segment)
    assert (entry.windows, entry.tail_tokens) == (100, 7)


def test_complete_data_gives_a_short_last_segment() -> None:
    policy = replace(POLICY, epochs=1)
    found = grow([ready("a"), ready("b"), ready("c")], complete=True, policy=policy, consumed=FAR // 2)
    assert names(found) == [["a", "b"], ["c"], "end"]


def test_the_plan_stays_a_given_number_of_batches_ahead_and_no_more() -> None:
    sources = [ready(name, 1000) for name in "abcdefgh"]
    plan = appended(plan_of(), grow(sources))
    assert plan.windows >= AHEAD_BATCHES * 2
    assert names(grow(sources, plan)) == []
    assert grow(sources, plan).why == "far enough ahead"
    assert names(grow(sources, plan, consumed=plan.windows)) == [["b"]]


def test_growth_stops_at_the_horizon() -> None:
    sources = [ready(name, 1000) for name in "abcdefgh"]
    found = grow(sources, consumed=115, horizon=120)
    assert sum(entry.windows for entry in found.entries if isinstance(entry, Segment)) == 198


def test_quarantined_and_duplicate_sources_are_passed_over_once() -> None:
    sources = [
        PlanSource("q", "quarantined"),
        ready("a"),
        PlanSource("d", "duplicate"),
        ready("b"),
        ready("c", 2000),
    ]
    first = grow(sources)
    assert names(first) == [("q", "quarantined"), ("d", "duplicate"), ["a", "b"]]
    assert [entry.n for entry in first.entries] == [0, 1, 2]
    assert names(grow(sources, appended(plan_of(), first), consumed=90)) == [["c"]]


def test_a_missing_source_holds_the_plan_back_only_for_a_time() -> None:
    sources = [ready("a"), pending("m"), ready("b"), ready("c")]
    first = grow(sources, now=100.0)
    assert names(first) == []
    assert first.why == "waiting for m"
    held = grow(sources, now=159.0, waiting=dict(first.waiting))
    assert names(held) == []
    later = grow(sources, now=160.0, waiting=dict(held.waiting))
    assert names(later) == [("m", "missing"), ["a", "b"]]


def test_a_missing_source_is_not_passed_over_while_nothing_behind_it_is_ready() -> None:
    sources = [ready("a"), pending("m"), pending("b")]
    assert grow(sources, now=10_000.0).waiting == {}
    assert names(grow(sources, now=10_000.0, waiting={"m": 0.0})) == []


def test_a_late_arrival_joins_a_later_segment_of_the_epoch() -> None:
    missing = [ready("a"), pending("m"), ready("b"), ready("c")]
    plan = appended(plan_of(), grow(missing, now=100.0, waiting={"m": 0.0}))
    arrived = [ready("a"), ready("d"), ready("b"), ready("c")]
    found = grow(arrived, plan, consumed=90)
    assert names(found) == [["d", "c"]]
    assert isinstance(found.entries[0], Segment)
    assert found.entries[0].epoch == 0


def test_arrival_order_waits_for_nobody() -> None:
    policy = replace(POLICY, order="arrival")
    found = grow([pending("m"), ready("a"), pending("o"), ready("b")], policy=policy)
    assert names(found) == [["a", "b"]]


def test_arrival_order_takes_sets_as_they_became_ready() -> None:
    policy = replace(POLICY, order="arrival")
    sources = [
        replace(ready(name), arrived=when) for name, when in zip("abcd", (4.0, 2.0, 3.0, 2.0), strict=True)
    ]
    found = grow(sources, policy=policy, consumed=90)
    assert names(found) == [["b", "d"], ["c", "a"]]


def test_arrival_order_goes_by_the_listing_from_the_second_epoch_on() -> None:
    policy = replace(POLICY, order="arrival", epochs=2)
    sources = [replace(ready("a"), arrived=2.0), replace(ready("b"), arrived=1.0)]
    found = grow(sources, policy=policy, complete=True, consumed=FAR // 2)
    assert names(found) == [["b", "a"], ["a", "b"], "end"]


def test_a_cold_set_is_waited_for_and_named_as_what_is_lacking() -> None:
    sources = [ready("a"), cold("b"), ready("c"), cold("d")]
    found = grow(sources, now=10_000.0, waiting={"b": 0.0})
    assert names(found) == []
    assert found.why == "waiting for b to be brought back from warm"


def test_the_sets_of_the_next_entries_are_known_while_some_are_cold() -> None:
    sources = [ready("a"), cold("b"), ready("c"), cold("d")]
    assert [key for key, _ in grow(sources, consumed=90).coming] == list(keys("abcd"))


def test_the_next_epoch_begins_only_with_its_first_set_hot_again() -> None:
    sources = [ready("a"), ready("b")]
    plan = appended(plan_of(), grow(sources))
    away = [cold("a"), ready("b")]
    found = grow(away, plan, complete=True, consumed=90)
    assert (names(found), found.why) == ([], "waiting for a to be brought back from warm")
    assert names(grow(sources, plan, complete=True, consumed=90)) == [["a", "b"]]


def test_complete_data_gives_no_short_segment_while_the_rest_of_it_is_cold() -> None:
    policy = replace(POLICY, epochs=1)
    sources = [ready("a"), ready("b"), ready("c"), cold("d", 100)]
    found = grow(sources, complete=True, policy=policy, consumed=90)
    assert names(found) == [["a", "b"]]
    arrival = replace(policy, order="arrival")
    assert names(grow(sources, complete=True, policy=arrival, consumed=90)) == [["a", "b"]]


def test_a_cold_set_that_the_epoch_has_already_is_in_nobodys_way() -> None:
    plan = appended(plan_of(), grow([ready("a"), ready("b")]))
    found = grow([cold("a"), cold("b"), ready("c"), ready("d")], plan, consumed=90)
    assert names(found) == [["c", "d"]]


def test_arrival_order_goes_on_with_what_is_hot_while_warm_is_away() -> None:
    policy = replace(POLICY, order="arrival")
    found = grow([cold("a"), ready("b"), ready("c")], policy=policy)
    assert names(found) == [["b", "c"]]
    found = grow([cold("a"), ready("b")], policy=policy)
    assert (names(found), found.why) == ([], "waiting for a to be brought back from warm")


def test_a_set_being_restored_that_the_epoch_has_already_is_not_waited_for() -> None:
    plan = appended(plan_of(), grow([ready("a"), ready("b")]))
    restoring = replace(ready("a"), standing="pending")
    found = grow([restoring, ready("b"), ready("c"), ready("d")], plan, consumed=90)
    assert (names(found), found.waiting) == ([["c", "d"]], {})


def test_the_plan_reaches_as_far_ahead_as_asked() -> None:
    sources = [ready(name, 1000) for name in "abcdefgh"]
    assert len(grow(sources).entries) == 1
    assert len(grow(sources, ahead=5).entries) == 1
    assert len(grow(sources, ahead=300).entries) == 4
    assert len(grow(sources, ahead=300, horizon=150).entries) == 2


def test_another_sequence_length_counts_from_the_next_entry_on() -> None:
    sources = [ready(name, 1000) for name in "ab"]
    plan = appended(plan_of(), grow(sources))
    longer = replace(POLICY, seq_len=20, run_id="run-a")
    (entry,) = grow(sources, plan, consumed=90, policy=longer).entries
    assert isinstance(entry, Segment)
    assert (entry.seq_len, entry.windows, entry.tail_tokens, entry.run_id) == (20, 49, 20, "run-a")
    assert plan.segments[0].seq_len == 10


def test_a_new_epoch_begins_when_all_is_entered_and_complete() -> None:
    sources = [ready("a"), ready("b"), PlanSource("q", "quarantined")]
    plan = appended(plan_of(), grow(sources))
    assert names(grow(sources, plan, consumed=90)) == []
    found = grow(sources, plan, complete=True, consumed=90)
    assert names(found) == [("q", "quarantined"), ["a", "b"]]
    segments = [entry for entry in found.entries if isinstance(entry, Segment)]
    assert segments[0].epoch == 1
    keys = {entry.key for entry in (*plan.segments, *segments)}
    assert len(keys) == len(plan.segments) + len(segments)


def test_the_plan_ends_at_the_cap_and_only_once() -> None:
    policy = replace(POLICY, epochs=2)
    sources = [ready("a"), ready("b")]
    plan = appended(plan_of(), grow(sources, complete=True, consumed=FAR // 2, policy=policy))
    assert names(Growth(plan.entries, "")) == [["a", "b"], ["a", "b"], "end"]
    assert plan.ended
    assert names(grow(sources, plan, complete=True, consumed=FAR // 2, policy=policy)) == []
    raised = replace(policy, epochs=3)
    assert names(grow(sources, plan, complete=True, consumed=FAR // 2, policy=raised)) == [["a", "b"], "end"]


def test_no_end_is_written_when_the_horizon_comes_first() -> None:
    policy = replace(POLICY, epochs=1)
    assert names(grow([ready("a"), ready("b")], complete=True, horizon=40, policy=policy)) == [["a", "b"]]


def test_no_segment_is_without_a_window_but_the_very_last() -> None:
    policy = replace(POLICY, segment_tokens=1, epochs=1)
    sources = [ready("a", 4), ready("b", 4), ready("c", 4), ready("d", 0), ready("e", 3)]
    found = grow(sources, complete=True, policy=policy)
    assert names(found) == [["a", "b", "c"], ["d", "e"], "end"]
    assert [(e.windows, e.tail_tokens) for e in found.entries if isinstance(e, Segment)] == [(1, 2), (0, 3)]


def test_data_without_a_single_window_ends_instead_of_going_round_for_ever() -> None:
    assert names(grow([ready("a", 3)], complete=True)) == [["a"], "end"]
    assert names(grow([PlanSource("q", "quarantined")], complete=True)) == [("q", "quarantined"), "end"]
    assert names(grow([], complete=True)) == []


def test_one_set_is_never_named_twice_in_an_epoch() -> None:
    twin = replace(ready("a"), path="copy of a")
    policy = replace(POLICY, epochs=1)
    found = grow([ready("a"), twin, ready("b")], complete=True, consumed=90, policy=policy)
    assert names(found) == [["a", "b"], "end"]


def test_complete_is_not_believed_while_a_source_is_unsettled() -> None:
    assert names(grow([ready("a"), pending("m")], complete=True)) == []


def test_the_first_segment_may_be_as_small_as_the_start_gate() -> None:
    policy = replace(POLICY, first_segment_tokens=400)
    sources = [ready(name) for name in "abc"]
    plan = appended(plan_of(), grow(sources, policy=policy))
    assert names(Growth(plan.entries, "")) == [["a"], ["b", "c"]]


def test_source_states_become_standings() -> None:
    key, manifest = fake_set("a")
    for state, standing in (
        (None, "pending"), ("seen", "pending"), ("building", "pending"), ("proven", "ready"),
        ("synced", "ready"), ("released", "ready"), ("quarantined", "quarantined"),
        ("duplicate", "duplicate"),
    ):  # fmt: skip
        assert PlanSource.of("a", state, key, manifest, 5).standing == standing
    assert PlanSource.of("a", "proven", key, None, 5).standing == "pending"
    assert PlanSource.of("a", "released", key, manifest, 5, hot=False).standing == "cold"
    assert PlanSource.of("a", "seen", key, manifest, 5, hot=False).standing == "pending"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("rrrpqd")), min_size=1, max_size=8),
    st.integers(1, 100),
    st.integers(1, 3),
    st.data(),
)
def test_however_sources_arrive_each_set_is_in_each_epoch_once(
    listing: list[tuple[int, str]], segment_tokens: int, epochs: int, data: st.DataObject
) -> None:
    policy = replace(POLICY, segment_tokens=segment_tokens, epochs=epochs, hold_s=5.0)
    kinds = {"q": "quarantined", "d": "duplicate"}
    final = [
        PlanSource(str(i), kinds[kind]) if kind in kinds else replace(ready(str(i), tokens), path=str(i))
        for i, (tokens, kind) in enumerate(listing)
    ]
    settled = {i for i, (_, kind) in enumerate(listing) if kind != "p"}
    plan, waiting, now = plan_of(), {}, 0.0
    for _ in range(60):
        now += data.draw(st.sampled_from([0.0, 1.0, 10.0]))
        if len(settled) < len(final) and data.draw(st.booleans()):
            settled.add(min(set(range(len(final))) - settled))
        sources = [one if i in settled else pending(str(i)) for i, one in enumerate(final)]
        found = grow(
            sources, plan, complete=len(settled) == len(final), consumed=plan.windows, policy=policy, now=now,
            waiting=waiting,
        )  # fmt: skip
        plan, waiting = appended(plan, found), dict(found.waiting)
        assert [entry.n for entry in plan.entries] == list(range(len(plan.entries)))
    for epoch in {entry.epoch for entry in plan.segments}:
        named = [key for entry in plan.segments if entry.epoch == epoch for key, _ in entry.sets]
        assert len(named) == len(set(named))
    passed = [entry.path for entry in plan.entries if isinstance(entry, Passed)]
    assert len(passed) == len(set(passed))
    if isinstance(plan.entries[-1] if plan.entries else None, End):
        first = [key for entry in plan.segments if entry.epoch == 0 for key, _ in entry.sets]
        assert set(first) == {one.key for one in final if one.standing == "ready"}


def test_the_hold_ends_before_the_sets_behind_a_missing_source_are_proven() -> None:
    sources = [ready("a"), pending("m"), *(replace(ready(name), standing="unproven") for name in "bc")]
    first = grow(sources, now=100.0)
    assert (names(first), first.coming, first.waiting) == ([], (), {"m": 100.0})
    later = grow(sources, now=160.0, waiting=dict(first.waiting))
    assert [key for key, _ in later.coming] == list(keys("ab"))
    assert (names(later), later.why) == ([], "proving the shard set of b")


def test_what_is_waited_for_is_the_missing_source_and_not_a_set_that_nobody_needs_to_prove_yet() -> None:
    unproven = replace(ready("a"), standing="unproven")
    assert grow([unproven, pending("m"), ready("b")]).why == "waiting for m"
    assert grow([unproven, cold("b"), ready("c")]).why == "proving the shard set of a"
    assert grow([ready("a"), replace(ready("b"), standing="unproven")]).why == "proving the shard set of b"


def test_a_whole_listing_goes_round_without_the_sources_that_were_waited_for_long_enough() -> None:
    sources = [ready("a"), pending("m"), ready("b"), ready("c")]
    found = grow(sources, whole=True, now=60.0, waiting={"m": 0.0}, consumed=90)
    assert names(found) == [("m", "missing"), ["a", "b"], ["c"], ["a", "b"]]
    assert names(grow(sources, now=60.0, waiting={"m": 0.0}, consumed=90)) == [("m", "missing"), ["a", "b"]]
    arrived = [ready("a"), ready("m"), ready("b"), ready("c")]
    late = grow(arrived, appended(plan_of(), found), whole=True, consumed=240)
    assert names(late)[0] == ["m", "c"]


def test_no_plan_ends_for_want_of_a_source_that_may_still_come() -> None:
    policy = replace(POLICY, epochs=1)
    sources = [ready("a"), pending("m"), ready("b")]
    found = grow(sources, whole=True, now=60.0, waiting={"m": 0.0}, consumed=90, policy=policy)
    assert (names(found), found.why) == ([("m", "missing"), ["a", "b"]], "waiting for m")
    plan = appended(plan_of(), found)
    came = [ready("a"), ready("m"), ready("b")]
    assert names(grow(came, plan, complete=True, whole=True, consumed=90, policy=policy)) == [["m"], "end"]


def test_the_last_source_of_a_whole_listing_is_waited_for_like_an_overtaken_one() -> None:
    for order in ("listing", "arrival"):
        policy = replace(POLICY, order=order)
        sources = [ready("a"), ready("b"), pending("m")]
        first = grow(sources, whole=True, now=5.0, policy=policy, consumed=90)
        assert (names(first), first.waiting) == ([["a", "b"]], {"m": 5.0})
        plan = appended(plan_of(), first)
        later = grow(
            sources, plan, whole=True, now=65.0, waiting=dict(first.waiting), policy=policy, consumed=90
        )
        assert names(later) == [("m", "missing"), ["a", "b"]]
        more = [*sources, pending("o")]  # much may still come: a slow download is no dead one
        assert grow(more, plan, whole=True, now=65.0, policy=policy, consumed=90).waiting == {}
