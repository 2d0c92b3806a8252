"""The comparison of two checkpoints by the same documents: what it may call better, worse, or not worse."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from stoker.evaluation.compare import Sample, compare, smallest_difference
from stoker.supervise.evaluation.lines import Comparison


def cases(passed: Sequence[float], weight: float = 1.0) -> list[Sample]:
    return [Sample(f"{number:04}", value, weight) for number, value in enumerate(passed)]


def verdict(ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0) -> str:
    return compare(cases(ours), cases(theirs), margin=margin, higher_is_better=True, ratio=False).verdict


@pytest.mark.parametrize(
    ("ours", "theirs", "margin", "expected"),
    [
        ([1] * 6 + [0] * 18, [0] * 24, 0.1, "better"),  # 2 ** -6 is below 2.5 %
        ([1] * 5 + [0] * 19, [0] * 24, 0.0, "doubt"),  # 2 ** -5 is not
        ([1] * 5, [0] * 5, 0.0, "doubt"),
        ([1] * 23 + [0], [1] * 24, 0.0, "doubt"),  # one case lost
        ([1] * 23 + [0], [1] * 24, 0.1, "doubt"),
        ([1] * 24, [1] * 24, 0.1, "not_worse"),
        ([1] * 24, [1] * 24, 0.0, "doubt"),  # without a margin nothing shows that they are alike
        ([0] * 24, [1] * 24, 0.1, "worse"),
        ([0] * 6 + [1] * 18, [1] * 24, 0.0, "worse"),
        ([0] * 6 + [1] * 18, [1] * 24, 0.5, "not_worse"),  # worse, but not by more than the margin
    ],
)
def test_cases_that_pass_or_fail(ours: list[int], theirs: list[int], margin: float, expected: str) -> None:
    assert verdict(ours, theirs, margin) == expected


def documents(seed: int, shift: float, n: int = 62) -> tuple[list[Sample], list[Sample]]:
    """Bits of documents of unlike length, by a model that needs `shift` more a byte, and by another."""
    chance, ours, theirs = random.Random(seed), list[Sample](), list[Sample]()
    for name in map(str, range(n)):
        size, rate = chance.randint(200, 4000), chance.gauss(1.0, 0.15)
        ours.append(Sample(name, size * (rate + chance.gauss(shift, 0.02)), size))
        theirs.append(Sample(name, size * rate, size))
    return ours, theirs


def of_bits(ours: list[Sample], theirs: list[Sample], margin: float = 0.01) -> Comparison:
    return compare(ours, theirs, margin=margin, higher_is_better=False, ratio=True)


@pytest.mark.parametrize(
    ("shift", "expected"),
    [(-0.03, {"better"}), (0.0, {"not_worse"}), (0.004, {"not_worse", "doubt"}), (0.03, {"worse"})],
)
def test_bits_per_byte_beyond_and_below_the_margin(shift: float, expected: set[str]) -> None:
    assert {of_bits(*documents(seed, shift)).verdict for seed in range(5)} == expected


def test_the_difference_is_that_of_the_ratios_and_its_interval_holds_it() -> None:
    ours, theirs = documents(1, 0.02)
    found = of_bits(ours, theirs)
    bits = [sum(one.value for one in side) / sum(one.weight for one in side) for side in (ours, theirs)]
    assert found.difference == pytest.approx(bits[1] - bits[0])
    assert found.low < found.difference < found.high < 0
    assert found.n == 62


def test_models_that_are_alike_are_seldom_called_better_or_worse() -> None:
    found = [of_bits(*documents(seed, 0.0, n=10), margin=0.0).verdict for seed in range(200)]
    assert found.count("better") <= 10
    assert found.count("worse") <= 10


def test_the_order_of_the_samples_changes_nothing() -> None:
    ours, theirs = documents(3, 0.006)
    shuffled = random.Random(5).sample(ours, len(ours))
    assert of_bits(shuffled, theirs[::-1]) == of_bits(ours, theirs)


@pytest.mark.parametrize(
    ("ours", "error"),
    [
        (cases([1.0] * 7), "same documents"),
        (cases([1.0] * 9), "same documents"),
        ([*cases([1.0] * 7), Sample("other", 1.0)], "same documents"),
        (cases([1.0] * 7 + [math.nan]), "no finite value"),
        ([*cases([1.0] * 7), Sample("0007", None)], "no finite value"),  # type: ignore[arg-type]
        (cases([1.0] * 8, weight=2.0), "as long"),
    ],
)
def test_what_is_no_pair_is_not_compared(ours: list[Sample], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        of_bits(ours, cases([1.0] * 8))
    with pytest.raises(ValueError, match="nothing to compare in 1 "):
        of_bits(cases([1.0]), cases([1.0]))
    with pytest.raises(ValueError, match="or empty"):
        of_bits(cases([1.0] * 8, weight=0.0), cases([1.0] * 8, weight=0.0))


@pytest.mark.parametrize(
    ("n", "spread", "least"), [(5, None, math.inf), (24, None, 0.25), (64, 0.1, 0.035), (5, 0.1, math.inf)]
)
def test_the_smallest_difference_that_pairs_can_show(n: int, spread: float | None, least: float) -> None:
    assert smallest_difference(n, spread) == pytest.approx(least, rel=0.01)
