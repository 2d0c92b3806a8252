"""From a trace to the trees a crash may leave: any prefix of it, and any subset of its un-synced effects.

The model is like ext4 without its favours (no ordered data, no implied sync at a rename):

* a file's bytes are durable once it was synced after they were written; before, each write may be there, be
  missing, be there by half, or be zeros of the right length;
* names (create, rename, link, unlink, mkdir, rmdir) are durable once their directory was synced; before, each
  may or may not have happened. A rename is one effect, never half done; its directory is where it leads;
* what was there at the beginning is durable.

A crash just before a sync may leave everything that a crash between it and the sync before may leave, so
crash points are: before each sync, before each acknowledgement, and at the end. Where there are more states
than wanted, those that lose nothing, one thing, all but one, or all from one step on come first; the rest is
a seeded sample.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crash.model import (
    ROOT,
    Acknowledged,
    Effect,
    Entries,
    Key,
    Step,
    Sync,
    Trace,
    Truncate,
    Write,
    apply_data,
)

DONE, LOST, SHORT, ZEROS = "done", "lost", "short", "zeros"


@dataclass(frozen=True)
class Point:
    """A moment to crash at: the effects so far, which of them are pending, what was acknowledged."""

    step: int
    complete: bool
    acknowledged: tuple[Any, ...]
    effects: tuple[Effect, ...]
    pending: tuple[int, ...]  # indices into effects

    def variants(self, index: int) -> tuple[str, ...]:
        """What may have become of a pending effect, the best case first."""
        effect = self.effects[index]
        if not isinstance(effect, Write):
            return DONE, LOST
        return (DONE, LOST, SHORT, ZEROS) if len(effect.data) > 1 else (DONE, LOST, ZEROS)


@dataclass(frozen=True)
class State:
    """A crash point and the fate of each pending effect."""

    point: Point
    fates: tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """What a state leaves on disk: names and contents."""

    names: dict[Key, int]
    content: dict[int, bytes]

    def signature(self) -> tuple[Any, ...]:
        """Equal for trees that look the same from their root."""
        return tuple(sorted((path, node, self.content.get(node, b"")) for path, node in self.walk()))

    def walk(self) -> Iterator[tuple[str, int]]:
        """Every path that can be reached from the root, parents first, and its node."""
        waiting = [("", ROOT)]
        while waiting:
            path, directory = waiting.pop()
            for (where, name), node in self.names.items():
                if where == directory and path.count("/") < 50:  # a lost rename can close a circle
                    yield f"{path}{name}", node
                    waiting.append((f"{path}{name}/", node))


def crash_points(trace: Trace) -> list[Point]:
    """The moments to crash at, in order."""
    points, effects, durable, acknowledged = [], [], set(), ()

    def point(step: int, complete: bool) -> Point:
        pending = tuple(index for index in range(len(effects)) if index not in durable)
        return Point(step, complete, acknowledged, tuple(effects), pending)

    for number, step in enumerate(trace.steps):
        if isinstance(step, Sync):
            points.append(point(number, False))
            durable.update(index for index, effect in enumerate(effects) if _made_durable(effect, step))
        elif isinstance(step, Acknowledged):
            points.append(point(number, False))
            acknowledged = (*acknowledged, step.value)
        else:
            effects.append(step)
    return [*points, point(len(trace.steps), True)]


def enumerate_states(trace: Trace, most: int, seed: int) -> tuple[list[State], bool]:
    """The states to try, and whether they are all there are."""
    points = crash_points(trace)
    total = sum(math.prod(len(point.variants(index)) for index in point.pending) for point in points)
    if total <= most:
        return [state for point in points for state in _all(point)], True
    chosen = dict.fromkeys(state for point in points for state in _telling(point))
    rng = random.Random(seed)
    for _ in range(most):
        point = rng.choice(points)
        chosen[State(point, tuple(rng.choice(point.variants(index)) for index in point.pending))] = None
    states = list(chosen)
    if len(states) > most:
        states = rng.sample(states, most)
    return states, False


def tree_of(trace: Trace, state: State) -> Tree:
    """What is on disk after a crash in this state."""
    fates = dict(zip(state.point.pending, state.fates, strict=True))
    names = dict(trace.names)
    content = {node: bytearray(data) for node, data in trace.content.items()}
    for index, effect in enumerate(state.point.effects):
        fate = fates.get(index, DONE)
        if fate == LOST:
            continue
        if isinstance(effect, Entries):
            for key, node in effect.changes:
                if node is None:
                    names.pop(key, None)
                else:
                    names[key] = node
        else:
            apply_data(content.setdefault(effect.node, bytearray()), _as_left(effect, fate))
    return Tree(names, {node: bytes(data) for node, data in content.items()})


def describe(trace: Trace, state: State) -> str:
    """The steps up to the crash, one a line, with what became of them."""
    fates = dict(zip(state.point.pending, state.fates, strict=True))
    lines, effects = [], 0
    for step in trace.steps[: state.point.step]:
        fate = ""
        if isinstance(step, Effect):
            fate = fates.get(effects, "durable")
            effects += 1
        lines.append(f"  {fate:>8}  {step.label}")
    where = "after the write path returned" if state.point.complete else "here"
    return "\n".join([*lines, f"     CRASH  {where}"])


def _made_durable(effect: Effect, sync: Sync) -> bool:
    return sync.node == (effect.anchor if isinstance(effect, Entries) else effect.node)


def _as_left(effect: Write | Truncate, fate: str) -> Write | Truncate:
    if isinstance(effect, Write) and fate == SHORT:
        return Write(effect.label, effect.node, effect.offset, effect.data[: len(effect.data) // 2])
    if isinstance(effect, Write) and fate == ZEROS:
        return Write(effect.label, effect.node, effect.offset, bytes(len(effect.data)))
    return effect


def _all(point: Point) -> Iterator[State]:
    for fates in itertools.product(*(point.variants(index) for index in point.pending)):
        yield State(point, fates)


def _telling(point: Point) -> Iterator[State]:
    count = len(point.pending)
    for lost_from in range(count, -1, -1):  # what kill -9 at each step leaves
        yield State(point, (DONE,) * lost_from + (LOST,) * (count - lost_from))
    for place, index in enumerate(point.pending):
        for fate in point.variants(index)[1:]:
            yield State(point, (DONE,) * place + (fate,) + (DONE,) * (count - place - 1))
        yield State(point, (LOST,) * place + (DONE,) + (LOST,) * (count - place - 1))


__all__ = ["Point", "State", "Step", "Tree", "crash_points", "describe", "enumerate_states", "tree_of"]
