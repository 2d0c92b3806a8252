"""What is tried when memory runs out: smaller read batches, fewer builders at once, then none for a while.

Two things are kept apart. The ladder is the machine's: it goes down a rung when the kernel kills or an
allocation fails, and up again, slowly, with builds that end well. What a file needs is its own: where a
builder took more than its hard budget, the file is read in smaller batches, and at last built alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

READ_ROWS = (250, 60, 15)  # the first reads fastest and peaks lowest; the last holds a 100 MB document too
SMALLEST = len(READ_ROWS) - 1
ALONE = SMALLEST + 1  # a file's need beyond the smallest batches: no other build beside it
CLIMB_AFTER_S = 600.0  # on a rung, before a build that ends well leads up
REST_S = 5.0  # the shortest pause


@dataclass(frozen=True)
class Ladder:
    """`step` counts the rungs down from the top, `since` is the monotonic time of the last one taken."""

    step: int = 0
    since: float = 0.0
    paused: bool = False

    @property
    def rows(self) -> int:
        """Which of READ_ROWS is read."""
        return min(self.step, SMALLEST)

    def builders(self, most: int) -> int:
        """How many may build at once, of at most `most`; 0 during a pause."""
        return 0 if self.paused else max(1, most >> max(0, self.step - SMALLEST))

    def down(self, began_at: int, most: int, now: float) -> Ladder:
        """A worker that began at step `began_at` ran out of memory: one rung down, at the end a pause.

        What began higher up says nothing about this rung.
        """
        if began_at < self.step or self.paused:
            return self
        is_last = self.rows == SMALLEST and self.builders(most) == 1
        return Ladder(self.step + (not is_last), now, paused=is_last)

    def succeeded(self, now: float) -> Ladder:
        """A build ended well: after a while, one rung up."""
        if self.step == 0 or self.paused or now - self.since < CLIMB_AFTER_S:
            return self
        return Ladder(self.step - 1, now)

    def rested(self, headroom_bytes: int, needed_bytes: int, now: float) -> Ladder:
        """Go on, on the lowest rung, once a builder has room again."""
        if self.paused and headroom_bytes >= needed_bytes and now - self.since >= REST_S:
            return replace(self, paused=False, since=now)
        return self


@dataclass(frozen=True)
class Attempt:
    """Under which conditions a build began: `rows` of READ_ROWS, whether no other ran during it, the memory
    to spare before it, the ladder's step."""

    rows: int
    alone: bool
    headroom_bytes: int
    step: int = 0

    def is_blamed(self, hard_bytes: int) -> bool:
        """Whether the file is at fault when memory ran out: nothing else can explain it."""
        return self.rows == SMALLEST and self.alone and self.headroom_bytes > hard_bytes
