"""Runs recovery and invariant on every state a crash may leave."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash.model import Trace
from crash.recorder import recording
from crash.states import State, Tree, describe, enumerate_states, tree_of


@dataclass(frozen=True)
class Crash:
    """Which crash an invariant is looking at."""

    complete: bool  # the write path had returned
    acknowledged: tuple[Any, ...]  # what it had acknowledged, in order


@dataclass(frozen=True)
class CrashReport:
    """How much was tried: distinct trees, out of the states taken; whether those are all; steps recorded."""

    trees: int
    states: int
    exhaustive: bool
    steps: int


class CrashFound(AssertionError):
    """A crash leaves a state that recovery does not cope with."""


def check_crashes(
    write: Callable[[Path], object],
    recover: Callable[[Path], object],
    invariant: Callable[[Path, Crash], object],
    *,
    prepare: Callable[[Path], object] = lambda root: None,
    max_states: int = 5000,
    seed: int = 0,
) -> CrashReport:
    """Record `write`, then try `recover` and `invariant` on each state a crash may leave (see the package).

    All four get the same directory path, so absolute paths in files stay true. Raises CrashFound.
    """
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="stoker-crash-", dir=memory if os.access(memory, os.W_OK) else None))
    root = base / "root"
    try:
        root.mkdir()
        prepare(root)
        with recording(root) as trace:
            write(root)
        states, exhaustive = enumerate_states(trace, max_states, seed)
        trees = _check(trace, states, root, recover, invariant)
        return CrashReport(trees, len(states), exhaustive, len(trace.steps))
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _check(
    trace: Trace,
    states: list[State],
    root: Path,
    recover: Callable[[Path], object],
    invariant: Callable[[Path, Crash], object],
) -> int:
    seen = set()
    for state in states:
        tree = tree_of(trace, state)
        crash = Crash(state.point.complete, state.point.acknowledged)
        signature = (repr(crash), tree.signature())
        if signature in seen:
            continue
        seen.add(signature)
        _materialise(trace, tree, root)
        try:
            for _ in range(2):
                recover(root)
                invariant(root, crash)
        except Exception as error:
            raise CrashFound(
                f"{type(error).__name__}: {error}\nafter this crash:\n{describe(trace, state)}"
            ) from error
    return len(seen)


def _materialise(trace: Trace, tree: Tree, root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()
    made: dict[int, Path] = {}
    for path, number in tree.walk():
        node, place = trace.nodes[number], root / path
        if node.kind == "dir":
            place.mkdir()
        elif node.kind == "symlink":
            place.symlink_to(node.target)
        elif number in made:
            place.hardlink_to(made[number])
        else:
            place.write_bytes(tree.content.get(number, b""))
            made[number] = place
        if node.kind != "symlink":
            place.chmod(node.mode)
