"""What is tried when memory runs out: smaller read batches, fewer builders at once, then none for a while.

Two things are kept apart. The ladder is the machine's: it goes down a rung when the kernel kills or an
allocation fails, and up again, slowly, after successes. A burden is one file's: a builder that took more than
its hard budget reads that file in smaller batches, and at last alone. A file is blamed only for a failure
that nothing else can explain: alone, in the smallest batches, with more memory to spare than it may take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

READ_ROWS = (250, 60, 15)  # the first reads fastest and peaks lowest; the last holds a 100 MB document too
SMALLEST = len(READ_ROWS) - 1
CLIMB_AFTER = 8  # builds that ended well
CLIMB_AFTER_S = 600.0  # or so long without a failure, with one build that ended well
REST_S = 5.0  # the shortest pause


@dataclass(frozen=True)
class Ladder:
    """`step` counts the rungs down from the top, `since` is the monotonic time of the last one taken."""

    step: int = 0
    successes: int = 0
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
            return replace(self, successes=0)
        if self.rows == SMALLEST and self.builders(most) == 1:
            return Ladder(self.step, 0, now, paused=True)
        return Ladder(self.step + 1, 0, now)

    def succeeded(self, now: float) -> Ladder:
        """A build ended well: after some, one rung up."""
        if self.step == 0 or self.paused:
            return self
        count = self.successes + 1
        if count >= CLIMB_AFTER or now - self.since >= CLIMB_AFTER_S:
            return Ladder(self.step - 1, 0, now)
        return replace(self, successes=count)

    def rested(self, headroom_bytes: int, needed_bytes: int, now: float) -> Ladder:
        """Go on, on the lowest rung, once a builder has room again."""
        if self.paused and headroom_bytes >= needed_bytes and now - self.since >= REST_S:
            return replace(self, paused=False, since=now)
        return self


@dataclass(frozen=True)
class Burden:
    """What one file was found to need: smaller batches than the ladder's, or to be built alone."""

    rows: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Attempt:
    """Under which conditions a build began: `rows` of READ_ROWS, whether no other ran during it, the memory
    to spare before it, the ladder's step."""

    rows: int
    alone: bool
    headroom_bytes: int
    step: int = 0


def is_blamed(attempt: Attempt, hard_bytes: int) -> bool:
    """Whether running out of memory is the file's own fault."""
    return attempt.rows == SMALLEST and attempt.alone and attempt.headroom_bytes > hard_bytes


def heavier(burden: Burden, attempt: Attempt) -> Burden:
    """What the file is found to need after an attempt that took too much."""
    if attempt.rows < SMALLEST:
        return replace(burden, rows=max(burden.rows, attempt.rows + 1))
    return Burden(SMALLEST, alone=True)
