"""Decides on a build that needs more room on hot than it claimed; pure.

A claim is an estimate from the file's size. Repetitive text can take a thousand times more, so a build stops
at its claim and asks.
"""

from __future__ import annotations

from dataclasses import dataclass

USUAL = 2  # times the expected size: the usual error of an estimate; such a build may use the floor
STEP_BYTES = 16 << 20  # a claim is raised by at least so much where there is room: builds ask seldom
AGAIN = 1.25  # times the size so far: the room that a build which was set back needs to begin again
HOPELESS = 1.5  # times the size so far: a build that hot could never hold at this size does not wait for room


@dataclass(frozen=True)
class Growth:
    """A build at the end of its claim; all in bytes of its set."""

    expected: int
    claimed: int
    written: int  # on hot
    needed: int  # `written` and the next write
    room: int  # free above the floor and not claimed by other work
    floor_room: int  # the part of the floor that any begun build may use
    most: int  # that hot can hold of one set after every removable set has left

    @property
    def is_usual(self) -> bool:
        """Whether the estimate's error is of the usual size."""
        return self.needed <= USUAL * self.expected

    @property
    def limit(self) -> int:
        """The bytes that the set may take now."""
        usual = min(self.written + self.floor_room, USUAL * self.expected) if self.is_usual else 0
        return max(self.written + self.room, usual)

    @property
    def is_hopeless(self) -> bool:
        """Whether hot can never hold the set; only a set far beyond its estimate can be hopeless.

        A disk that is full of other sets, or of files that are not Stoker's, convicts no file.
        """
        return not self.is_usual and self.needed * HOPELESS > self.most


def decide_growth(growth: Growth) -> int | None:
    """Returns the new claim of a build that asks for room; None where its partial set is given up."""
    if growth.needed > growth.limit:
        return None
    return min(growth.limit, max(growth.needed, growth.claimed * USUAL, growth.claimed + STEP_BYTES))
