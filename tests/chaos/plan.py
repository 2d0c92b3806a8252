"""The plan of kills: from a seed, which process dies, and at which moment or in which system call."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Strike:
    """One kill to come: after delay_s, or (call set) at the `when`th such call of a process of the job."""

    number: int
    target: str
    delay_s: float = 0.0
    call: str | None = None
    when: int = 0


def plan_strikes(
    kills: int,
    seed: int,
    targets: Sequence[str],
    longest_s: float,
    calls: Mapping[str, int],
    *,
    timed_every: int = 2,
) -> tuple[Strike, ...]:
    """Draw the kills: timed ones evenly over longest_s, all but one in `timed_every` in a call.

    `calls` maps a call to about how often a job makes it; early ones are drawn more often than late,
    since a job that ends before its strike wastes it.
    """
    rng = random.Random(seed)
    return tuple(
        _draw(rng, number, targets, longest_s, calls if number % timed_every else {})
        for number in range(kills)
    )


def _draw(
    rng: random.Random, number: int, targets: Sequence[str], longest_s: float, calls: Mapping[str, int]
) -> Strike:
    if calls:
        call = rng.choice(sorted(calls))
        when = int(math.exp(rng.uniform(0, math.log(calls[call] + 1))))
        return Strike(number, "any", call=call, when=when)
    return Strike(number, rng.choice(targets), delay_s=rng.uniform(0, longest_s))
