"""What the supervisor knows of its checkpoints' mirror between two looks at it, also across restarts.

`runs/<run>/mirror.json` holds the names that the last look or copy left there. It tells an unmounted warm
from an empty one, and what could be fallen back on while warm is away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.select import History
from stoker.store.record import read_or_set_aside, write_record

Look = Literal["wait", "try", "no"]


class MirrorBook:
    """The copies by the last look; `ever` a look succeeded, `now` one did in this daemon's life.

    `begun` is a copy that was started and of which no end was heard: it may be there.
    """

    def __init__(self, path: Path, quarantine: Path) -> None:
        self._path = path
        self.ever = self.now = False
        self.begun: Mirrored | None = None
        self._copies: dict[str, Mirrored] = {}
        body = read_or_set_aside(path, quarantine)
        if body is not None:
            self.ever = True
            found = [Mirrored(**copy) for copy in body["copies"]]
            self.begun = Mirrored(**body["begun"]) if body["begun"] else None
            self._copies = {one.name: one for one in found}

    @property
    def copies(self) -> tuple[Mirrored, ...]:
        return tuple(self._copies.values())

    def looked(self, found: Iterable[Mirrored]) -> None:
        """Take in a look that succeeded."""
        self.now = True
        self._change({one.name: one for one in found})

    def begin(self, one: Mirrored) -> None:
        """Take in, before it is done, that a copy is begun."""
        self._change(self._copies, begun=one)

    def copied(self, one: Mirrored) -> None:
        """Take in a copy that was proven."""
        self._change({**self._copies, one.name: one})

    def gone(self, names: Iterable[str]) -> None:
        """Take in that these are no longer there."""
        left = set(names)
        self._change({name: one for name, one in self._copies.items() if name not in left})

    def newest(self, history: History) -> Mirrored | None:
        """The newest copy of a history."""
        return next(iter(fallback(self.copies, history, -1)), None)

    @property
    def expected(self) -> bool:
        """Whether something must be there."""
        return bool(self._copies)

    def to_look(self, here: int | None, history: History, *, convicted: bool) -> Look:
        """Whether a launch from step `here` (None: from nothing) must know first what the mirror holds.

        `wait`: it could hold a newer one than what is proven here, and going back in silence would undo what
        was trained; `try`: by our own record it holds none, but that may be an old one that was put back, so
        a look is worth a moment. `convicted`: a newer one was proven wrong here just now.
        """
        step = -1 if here is None else here
        possible = [*self.copies, *([self.begun] if self.begun else [])]
        if fallback(possible, history, step) or (here is None and not self.ever):
            return "wait"
        return "try" if convicted or not self.now else "no"

    def _change(self, copies: dict[str, Mirrored], begun: Mirrored | None = None) -> None:
        if self.ever and (copies, begun) == (self._copies, self.begun):
            return
        ordered = sorted(copies.values(), key=lambda one: (one.timeline, one.step, one.mark))
        written = {
            "v": 1,
            "copies": [asdict(one) for one in ordered],
            "begun": asdict(begun) if begun else None,
        }
        write_record(self._path, written)
        self._copies, self.begun, self.ever = copies, begun, True
