"""Steps that the loop takes when memory runs out: smaller read batches, fewer builders, then a pause.

The ladder belongs to the machine: it goes down a rung when the kernel kills or an allocation fails, and
slowly up again with builds that end well. A file's need is separate: where a builder exceeded its hard
budget, the file is read in smaller batches, and at last built alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

READ_ROWS = (250, 60, 15)  # the first reads fastest and peaks lowest; the last holds a 100 MB document too
SMALLEST = len(READ_ROWS) - 1
ALONE = SMALLEST + 1  # a file's need beyond the smallest batches: no other build at the same time
CLIMB_AFTER_S = 600.0  # on a rung, before a build that ends well leads up
REST_S = 5.0  # the shortest pause


@dataclass(frozen=True)
class Ladder:
    """The machine's rung: `step` counts down from the top, `since` is the monotonic time of the last step."""

    step: int = 0
    since: float = 0.0
    paused: bool = False

    @property
    def rows(self) -> int:
        """The index into READ_ROWS."""
        return min(self.step, SMALLEST)

    def builders(self, most: int) -> int:
        """Returns how many may build at once, of at most `most`; 0 during a pause."""
        return 0 if self.paused else max(1, most >> max(0, self.step - SMALLEST))

    def down(self, began_at: int, most: int, now: float) -> Ladder:
        """Returns the ladder one rung down, or paused at the end, after a worker ran out of memory.

        A worker that began on a higher rung (`began_at`) is no evidence about this rung.
        """
        if began_at < self.step or self.paused:
            return self
        is_last = self.rows == SMALLEST and self.builders(most) == 1
        return Ladder(self.step + (not is_last), now, paused=is_last)

    def succeeded(self, now: float) -> Ladder:
        """Returns the ladder after a build that ended well: one rung up if enough time has passed."""
        if self.step == 0 or self.paused or now - self.since < CLIMB_AFTER_S:
            return self
        return Ladder(self.step - 1, now)

    def rested(self, headroom_bytes: int, needed_bytes: int, now: float) -> Ladder:
        """Returns the ladder without its pause once memory has room for a builder again."""
        if self.paused and headroom_bytes >= needed_bytes and now - self.since >= REST_S:
            return replace(self, paused=False, since=now)
        return self


@dataclass(frozen=True)
class Attempt:
    """The conditions at the start of a build."""

    rows: int  # index into READ_ROWS
    alone: bool  # no other build ran at the same time
    headroom_bytes: int  # memory to spare before it
    step: int = 0  # of the ladder

    def is_blamed(self, hard_bytes: int) -> bool:
        """Whether the file is to blame when memory ran out: every other explanation is excluded."""
        return self.rows == SMALLEST and self.alone and self.headroom_bytes > hard_bytes
