"""Positions: every window once, in order, whatever the batch sizes, skips and entry boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.log import End, Entry, Passed, Plan
from stoker.plan.positions import (
    START,
    Accounts,
    Position,
    Skip,
    advance,
    after,
    at,
    books,
    left_after,
    linear,
    take,
)
from stoker.store.errors import DataError
from support.plan_data import plan_of, segment


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kinds = draw(st.lists(st.one_of(st.integers(0, 12), st.just("passed")), min_size=1, max_size=8))
    entries: list[Entry] = [
        Passed(n, "x", "missing") if kind == "passed" else segment(n, int(kind), seq_len=4 + n % 2)
        for n, kind in enumerate(kinds)
    ]
    return plan_of(*entries)


@st.composite
def plans_with_skips(draw: st.DrawFn) -> tuple[Plan, tuple[Skip, ...]]:
    plan = draw(plans())
    bounds = st.integers(0, plan.windows)
    pairs = draw(st.lists(st.tuples(bounds, bounds), max_size=4))
    return plan, tuple((at(plan, min(pair)), at(plan, max(pair))) for pair in pairs)


def offsets(pieces: list[tuple[int, range]]) -> list[tuple[int, int]]:
    return [(entry, offset) for entry, span in pieces for offset in span]


@given(plans_with_skips(), st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_batches_of_any_size_give_every_window_once_in_order(
    given_plan: tuple[Plan, tuple[Skip, ...]], sizes: list[int]
) -> None:
    plan, skips = given_plan
    position, seen = START, []
    for size in sizes:
        pieces = take(plan, position, size, skips)
        if pieces is None:
            assert left_after(plan, position, skips) < size
            continue
        assert sum(len(span) for _, span in pieces) == size
        position = after(pieces, position)
        seen += offsets(pieces)
        assert Accounts(plan, skips).applied(position) == len(seen)
        assert Accounts(plan, skips).tokens(position) == sum(4 + entry % 2 for entry, _ in seen)
    everything = take(plan, START, left_after(plan, START, skips), skips)
    assert everything is not None
    assert seen == offsets(everything)[: len(seen)]
    skipped = {number for first, last in skips for number in range(linear(plan, first), linear(plan, last))}
    expected = [number for number in range(plan.windows) if number not in skipped]
    assert [plan.starts[entry] + offset for entry, offset in offsets(everything)] == expected


@given(plans(), st.data())
def test_linear_at_and_advance_agree(plan: Plan, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, plan.windows))
    assert linear(plan, at(plan, number)) == number
    more = data.draw(st.integers(0, plan.windows - number))
    ahead = advance(plan, at(plan, number), more)
    assert ahead is not None
    assert linear(plan, ahead) == number + more
    assert take(plan, at(plan, number), plan.windows - number + 1) is None


@given(plans_with_skips(), st.data())
def test_the_books_balance_at_every_position(
    given_plan: tuple[Plan, tuple[Skip, ...]], data: st.DataObject
) -> None:
    plan, skips = given_plan
    position = at(plan, data.draw(st.integers(0, plan.windows)))
    for exhausted in (False, True):
        account = books(plan, position, skips, exhausted=exhausted)
        assert account.windows == plan.windows
        assert account.windows == account.applied + account.skipped + account.remainder + account.ahead
        assert account.tail_tokens == sum(each.tail_tokens for each in plan.segments)


def test_the_position_does_not_depend_on_whether_the_next_entry_is_there_yet() -> None:
    short, longer = plan_of(segment(0, 4)), plan_of(segment(0, 4), segment(1, 4))
    assert advance(short, START, 4) == advance(longer, START, 4) == Position(0, 4)
    assert linear(longer, Position(0, 4)) == linear(longer, Position(1, 0))


def test_a_batch_reaches_across_entries() -> None:
    plan = plan_of(segment(0, 3), Passed(1, "x", "missing"), segment(2, 0), segment(3, 5), End(4))
    assert take(plan, Position(0, 1), 4) == [(0, range(1, 3)), (3, range(0, 2))]


def test_skipped_windows_are_passed_over_even_at_a_batch_boundary() -> None:
    plan = plan_of(segment(0, 10))
    skips = ((Position(0, 2), Position(0, 6)),)
    assert take(plan, START, 2, skips) == [(0, range(0, 2))]
    assert take(plan, Position(0, 2), 2, skips) == [(0, range(6, 8))]
    assert books(plan, Position(0, 8), skips).skipped == 4


def test_a_shorter_copy_of_the_plan_can_be_reckoned_with_later_skips() -> None:
    copy = plan_of(segment(0, 10))
    assert Accounts(copy, ((Position(3, 0), Position(4, 1)),)).tokens(Position(0, 10)) == 80


def test_a_place_the_plan_does_not_have_is_refused() -> None:
    plan = plan_of(segment(0, 4))
    for position in (Position(0, 5), Position(1, 0)):
        with pytest.raises(DataError, match="beyond"):
            linear(plan, position)
    for value in ([1], [1, -1], "1,2", [1, True], None):
        with pytest.raises(DataError):
            Position.parse(value)
    assert linear(plan_of(), START) == 0
    assert Accounts(plan_of()).tokens(START) == 0
