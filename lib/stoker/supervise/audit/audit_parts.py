"""Checks that the parts of a plan follow each other token by token, and that its closed epochs balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stoker.plan.log import Closed, Plan, Segment
from stoker.plan.parts import Part


def part_findings(plan: Plan, tokens: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yields entries with what is wrong; `tokens` are those of each set on record that was not given up.

    Behind a set that has none, a dataset's next part may begin with another set.
    """
    found: dict[tuple[str, int], list[tuple[Part, int]]] = {}  # by dataset and epoch, with their seq_len
    for entry in plan.entries:
        if isinstance(entry, Closed):
            parts = found.get((entry.dataset, entry.epoch), [])
            keys = {key for part, _ in parts for key, _ in part.sets}
            left = sum(tokens.get(key, 0) for key in keys)
            left -= sum(part.windows * seq_len for part, seq_len in parts)
            if keys <= tokens.keys() and left != entry.tail_tokens:
                its = f"it closes epoch {entry.epoch} of {entry.dataset} with {entry.tail_tokens} tail tokens"
                yield entry.n, f"{its}; the books of its sets and its windows leave {left}"
        for part in entry.parts if isinstance(entry, Segment) else ():
            before = found.setdefault((part.dataset, part.epoch), [])
            for why in _gaps(part, before, tokens):
                yield entry.n, f"its part of {part.dataset}, epoch {part.epoch}, {why}"
            before.append((part, entry.seq_len))


def _gaps(part: Part, before: Sequence[tuple[Part, int]], tokens: Mapping[str, int]) -> Iterator[str]:
    """Yields how a part fails to continue those before it in its epoch."""
    if not before:
        return
    last, seq_len = before[-1]
    is_next = part.sets[0] == last.sets[-1]
    named = {pair for one, _ in before for pair in one.sets}
    for key, _ in named.intersection(part.sets[is_next:]):
        yield f"names set {key[:16]} again: its windows would be applied twice"
    if all(key in tokens for key, _ in last.sets):
        stop = last.stop(seq_len) - sum(tokens[key] for key, _ in last.sets[:-1])
        if not is_next or part.first != stop:
            its = f"begins at token {part.first} of set {part.sets[0][0][:16]}"
            yield f"{its}, the part before ended at token {stop} of {last.sets[-1][0][:16]}"
