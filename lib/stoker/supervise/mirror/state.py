"""What the supervisor knows of its checkpoints' mirror between two looks at it, also across restarts.

`runs/<run>/mirror.json` holds the names that the last look or copy left there. It tells an unmounted warm
from an empty one, and what could be fetched while warm is away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.select import History
from stoker.kit.backoff import Backoff
from stoker.store.record import read_or_set_aside, write_record

Look = Literal["wait", "try", "no"]

LOOK_AGAIN_S = 3600.0  # warm may be cleared by hand
COMPLAINT_S = 600.0
PRUNE_AGAIN_S = 30.0  # what is left then is being read
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 60.0


class MirrorState:
    """The copies by the last look, and the trouble with warm; times are monotonic seconds."""

    def __init__(self, path: Path, quarantine: Path) -> None:
        self._path = path
        body = read_or_set_aside(path, quarantine)
        self.has_record = body is not None  # a look has succeeded, in this daemon's life or before
        self.is_fresh = False  # one has in this daemon's life
        self.copies = tuple(Mirrored.parse(copy) for copy in body["copies"]) if body else ()
        self.proven: set[str] = set()  # names of copies that were proven in this daemon's life
        self.trouble: str | None = None  # why the last try at `trouble_doing` failed
        self.trouble_doing = ""
        self.waiting = 0  # checkpoints still to be copied, at the last look
        self.tend_at = self.retry_at = self.look_at = self.prune_at = self._complain_at = 0.0
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)

    def looked(self, found: Iterable[Mirrored], now: float) -> None:
        """Take in a look that succeeded."""
        self.is_fresh, self.look_at = True, now + LOOK_AGAIN_S
        self._change(found)

    def copied(self, one: Mirrored) -> None:
        """Take in a copy that was proven."""
        self.proven.add(one.name)
        self._change([*(other for other in self.copies if other.name != one.name), one])

    def gone(self, names: Iterable[str]) -> None:
        """Take in that these copies are no longer there."""
        left = set(names)
        self._change(one for one in self.copies if one.name not in left)

    def failed(self, doing: str, reason: str, now: float) -> bool:
        """Take in a failure: all is tried again, later and later; True when it is worth an event."""
        self.retry_at, self.look_at = now + self._backoff.next(), 0.0
        is_worth = self.trouble is None or now >= self._complain_at
        if is_worth:
            self._complain_at = now + COMPLAINT_S
        self.trouble, self.trouble_doing = reason, doing
        return is_worth

    def worked(self, doing: str) -> bool:
        """Take in that something was done on warm; True when that ends the trouble: the same had failed."""
        if self.trouble is None or self.trouble_doing != doing:
            return False
        self.trouble, self.retry_at = None, 0.0
        self._backoff.reset()
        return True

    def newest(self, history: History) -> Mirrored | None:
        """The newest copy of a history."""
        return next(iter(fallback(self.copies, history, -1)), None)

    def to_look(self, here: int | None, history: History, *, has_rejected: bool) -> Look:
        """Whether a launch from step `here` (None: from nothing) must know first what the mirror holds.

        `wait`: it could hold a newer one than what is proven here, and going back in silence would undo what
        was trained; `try`: by our own record it holds none, but that may be an old one that was put back, so
        a look is worth a moment. `has_rejected`: a newer one was proven wrong here just now.
        """
        step = -1 if here is None else here
        if fallback(self.copies, history, step) or (here is None and not self.has_record):
            return "wait"
        return "try" if has_rejected or not self.is_fresh else "no"

    def status(self, copying: int | None) -> dict[str, Any]:
        """The mirror for people; `copying` is the step whose copy is under way."""
        newest = max(self.copies, key=lambda one: (one.timeline, one.step), default=None)
        return {
            "step": newest.step if newest else None,
            "copies": len(self.copies),
            "waiting": self.waiting,
            "copying": copying,
            "trouble": self.trouble,
        }

    def _change(self, copies: Iterable[Mirrored]) -> None:
        found = tuple(sorted(copies, key=lambda one: (one.timeline, one.step, one.mark)))
        if not self.has_record or found != self.copies:
            write_record(self._path, {"v": 1, "copies": [asdict(one) for one in found]})
        self.copies, self.has_record = found, True
