"""Arithmetic of positions in the plan: the next window, and the windows before and after a position.

A position is (entry, offset of the next window in the entry). The position after a batch has the entry of the
batch's last window, so (3, windows of 3) and (4, 0) are the same place; compare places by `linear`.
`skips` are the window ranges that the timeline and its ancestors skip.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from stoker.plan.log import Closed, Plan, Segment, windows_of
from stoker.store.errors import DataError


@dataclass(frozen=True)
class Position:
    """The offset of the next window in an entry; 0 <= offset <= the entry's windows."""

    entry: int
    offset: int

    @staticmethod
    def parse(value: object) -> Position:
        """Returns a position from its JSON form [entry, offset]; raises DataError."""
        if (
            isinstance(value, list | tuple)
            and len(value) == 2
            and all(type(number) is int and number >= 0 for number in value)
        ):
            return Position(value[0], value[1])
        raise DataError(f"position {value!r} is not [entry, offset]")

    def as_list(self) -> list[int]:
        return [self.entry, self.offset]


START = Position(0, 0)
Skip = tuple[Position, Position]  # from the first to before the second


@dataclass(frozen=True)
class Books:
    """The accounts of all windows of a plan: windows = applied + skipped + remainder + ahead."""

    windows: int
    applied: int
    skipped: int
    remainder: int
    ahead: int
    tokens: int  # applied windows x their sequence length
    tail_tokens: int  # of the whole plan


def linear(plan: Plan, position: Position) -> int:
    """Returns the plan's windows before a position; raises DataError for a position beyond the plan."""
    if position.entry >= len(plan.entries):
        if position == START:
            return 0
        raise DataError(f"position {position.as_list()} lies beyond the plan's {len(plan.entries)} entries")
    if position.offset > windows_of(plan.entries[position.entry]):
        most = windows_of(plan.entries[position.entry])
        raise DataError(f"position {position.as_list()} lies beyond the entry's {most} windows")
    return plan.starts[position.entry] + position.offset


def at(plan: Plan, windows: int) -> Position:
    """Returns the position after that many windows, in the entry of the last of them."""
    if not 0 <= windows <= plan.windows:
        raise DataError(f"window {windows} lies beyond the plan's {plan.windows} windows")
    if windows == 0:
        return START
    entry = bisect_right(plan.starts, windows - 1) - 1
    return Position(entry, windows - plan.starts[entry])


def take(
    plan: Plan, position: Position, count: int, skips: Sequence[Skip] = ()
) -> list[tuple[int, range]] | None:
    """Returns the next `count` windows as (entry, range of offsets); None while the plan has fewer."""
    pieces: list[tuple[int, range]] = []
    left = count
    for first, last in _open_ranges(plan, linear(plan, position), skips):
        if left == 0:
            break
        upto = min(last, first + left)
        pieces.extend(_pieces(plan, first, upto))
        left -= upto - first
    return pieces if left == 0 else None


def advance(plan: Plan, position: Position, count: int, skips: Sequence[Skip] = ()) -> Position | None:
    """Returns the position after the next `count` windows, or None while the plan has fewer."""
    pieces = take(plan, position, count, skips)
    return None if pieces is None else after(pieces, position)


def after(pieces: Sequence[tuple[int, range]], position: Position) -> Position:
    """Returns the position after pieces taken from `position`."""
    if not pieces:
        return position
    entry, offsets = pieces[-1]
    return Position(entry, offsets.stop)


def left_after(plan: Plan, position: Position, skips: Sequence[Skip] = ()) -> int:
    """Returns the number of windows from a position to the plan's end, without skipped ones."""
    return sum(last - first for first, last in _open_ranges(plan, linear(plan, position), skips))


class Accounts:
    """Counts the windows and tokens trained on before a position, with few comparisons per call."""

    def __init__(self, plan: Plan, skips: Sequence[Skip] = ()) -> None:
        self._plan = plan
        self._skipped = _skip_ranges(plan, skips)
        per_entry = (
            self._tokens_in(entry, windows_of(plan.entries[entry])) for entry in range(len(plan.entries))
        )
        self._tokens = tuple(accumulate(per_entry, initial=0))

    def applied(self, position: Position) -> int:
        """Returns the windows trained on: all before the position, without skipped ones."""
        end = linear(self._plan, position)
        return end - _covered(0, end, self._skipped)

    def tokens(self, position: Position) -> int:
        """Returns the tokens trained on: applied windows x the sequence length of their entry."""
        linear(self._plan, position)
        if not self._plan.entries:
            return 0
        return self._tokens[position.entry] + self._tokens_in(position.entry, position.offset)

    def _tokens_in(self, number: int, offset: int) -> int:
        """Returns the tokens of an entry's first `offset` windows, without skipped ones."""
        entry, start = self._plan.entries[number], self._plan.starts[number]
        if not isinstance(entry, Segment):
            return 0
        return entry.seq_len * (offset - _covered(start, start + offset, self._skipped))


def books(plan: Plan, position: Position, skips: Sequence[Skip] = (), *, exhausted: bool = False) -> Books:
    """Returns the accounts at a position; `exhausted`: the data ended the run, the rest is remainder."""
    accounts = Accounts(plan, skips)
    applied = accounts.applied(position)
    left = left_after(plan, position, skips)
    return Books(
        windows=plan.windows,
        applied=applied,
        skipped=plan.windows - applied - left,
        remainder=left if exhausted else 0,
        ahead=0 if exhausted else left,
        tokens=accounts.tokens(position),
        tail_tokens=sum(one.tail_tokens for one in plan.entries if isinstance(one, Segment | Closed)),
    )


def _skip_ranges(plan: Plan, skips: Iterable[Skip]) -> list[tuple[int, int]]:
    """Returns skips as sorted, disjoint linear ranges, cut at the end of a shorter copy of the plan."""
    spans = sorted((_clipped(plan, first), _clipped(plan, last)) for first, last in skips)
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        elif first < last:
            merged.append((first, last))
    return merged


def _clipped(plan: Plan, position: Position) -> int:
    if position.entry >= len(plan.entries):
        return plan.windows
    return linear(plan, position)


def _open_ranges(plan: Plan, start: int, skips: Iterable[Skip]) -> Iterable[tuple[int, int]]:
    """Yields the linear ranges from `start` to the plan's end that are not skipped."""
    for first, last in _skip_ranges(plan, skips):
        if start < first:
            yield start, first
        start = max(start, last)
    if start < plan.windows:
        yield start, plan.windows


def _covered(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> int:
    return sum(max(0, min(stop, last) - max(start, first)) for first, last in ranges)


def _pieces(plan: Plan, first: int, last: int) -> Iterable[tuple[int, range]]:
    entry = bisect_right(plan.starts, first) - 1
    while first < last:
        start, end = plan.starts[entry], plan.starts[entry + 1]
        if first < (upto := min(last, end)):
            yield entry, range(first - start, upto - start)
            first = upto
        entry += 1
