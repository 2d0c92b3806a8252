"""What becomes of a build that needs more room on hot than it claimed: a pure decision.

A claim is an estimate made of the file's size. Text that repeats itself can be a thousand times larger, so a
build stops at its claim and asks.
"""

from __future__ import annotations

from dataclasses import dataclass

USUAL = 2  # times what was expected: an estimate errs by so much, and such a build may go into the floor
STEP_BYTES = 16 << 20  # a claim is raised by at least so much where there is room: builds ask seldom
AGAIN = 1.25  # times what it needed so far: the room in which a build that was set back begins again
HOPELESS = 1.5  # times what it needed so far: where hot could never hold that, nobody waits for room


@dataclass(frozen=True)
class Growth:
    """A build at the end of its claim; all in bytes of its set.

    `written` lies on hot, `needed` is that and what comes next. `room` is free above the floor and claimed by
    nobody else, `floor_room` what any build that has begun may take. `most` is what hot can hold of one set
    once everything has left that can leave.
    """

    expected: int
    claimed: int
    written: int
    needed: int
    room: int
    floor_room: int
    most: int

    @property
    def is_usual(self) -> bool:
        """Whether the estimate erred by no more than estimates do."""
        return self.needed <= USUAL * self.expected

    @property
    def limit(self) -> int:
        """What the set may take now."""
        usual = min(self.written + self.floor_room, USUAL * self.expected) if self.is_usual else 0
        return max(self.written + self.room, usual)

    @property
    def is_hopeless(self) -> bool:
        """Whether hot can never hold the set: only of one far beyond what its file's size promised.

        A disk that is full of others, or of somebody else's files, convicts no file.
        """
        return not self.is_usual and self.needed * HOPELESS > self.most


def decide_growth(growth: Growth) -> int | None:
    """What a build that asks for room may claim from now on; None where its partial set is given up."""
    if growth.needed > growth.limit:
        return None
    return min(growth.limit, max(growth.needed, growth.claimed * USUAL, growth.claimed + STEP_BYTES))
