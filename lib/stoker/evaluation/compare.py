"""Whether a checkpoint is better than another, by what the two made of the same documents. Pure.

Each verdict is a sign-flip permutation test of the paired differences: if the two were alike, each document's
difference could as well have the other sign (Fisher 1935, The Design of Experiments, section 21). It assumes
no distribution, so it holds for bits per byte and for cases that pass or fail, and it is exact for few pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from stoker.supervise.evaluation.lines import Comparison

LEVEL = 0.025  # of each test: the chance that models that are alike are called better
POWER = 0.8  # of `smallest_difference`: the chance that it is shown
RESAMPLES = 9_999  # up to 13 pairs the test has fewer sign patterns than that, and is exact
BATCH_VALUES = 1 << 20  # differences that a test holds at once: 8 MB, whatever the number of pairs


@dataclass(frozen=True)
class Sample:
    """What a model made of a document; `doc` is the document's hash.

    `value` is the metric's; of a ratio such as bits per byte it is the document's numerator (its bits), and
    `weight` its denominator (its bytes).
    """

    doc: str
    value: float
    weight: float = 1.0


Samples = Sequence[Sample]


def compare(
    ours: Samples, baseline: Samples, *, margin: float, higher_is_better: bool, ratio: bool, seed: int = 0
) -> Comparison:
    """Returns what the samples show: better than the baseline, worse by more than the margin, or not worse.

    The order of the samples changes nothing. Raises ValueError where the two are not pairs of finite values.
    """
    import numpy as np
    from scipy import stats

    found = np.array(_differences(ours, baseline, ratio=ratio)) * (1.0 if higher_is_better else -1.0)
    n, mean = len(found), float(found.mean())

    def shows(differences: Any, alternative: str) -> bool:
        if (differences.mean() > 0) != (alternative == "greater"):
            return False  # its p is above a half, and a test of 10,000 documents takes seconds
        # The seed anew each time: a verdict must not hang on which tests were made before.
        how = {"permutation_type": "samples", "n_resamples": RESAMPLES, "batch": max(1, BATCH_VALUES // n)}
        rng = np.random.default_rng(seed)
        test = stats.permutation_test((differences,), np.mean, alternative=alternative, rng=rng, **how)
        return bool(test.pvalue <= LEVEL)

    tests: dict[str, tuple[Any, str]] = {
        "better": (found, "greater"),
        "worse": (found + margin, "less"),
        "not_worse": (found + margin, "greater"),
    }
    verdict = next((name for name, test in tests.items() if shows(*test)), "doubt")
    half = float(stats.t.ppf(1 - LEVEL, n - 1) * found.std(ddof=1)) / math.sqrt(n)
    return Comparison(verdict, mean, mean - half, mean + half, n)


def smallest_difference(n: int, spread: float | None) -> float:
    """Returns the smallest difference that n pairs can show; inf where they are too few for any.

    `spread` is the standard deviation of the differences of pairs: (z(1 - LEVEL) + z(POWER)) * spread /
    sqrt(n) is then shown in four of five trials (Miller 2024, Adding Error Bars to Evals, section 5). None is
    for cases that pass or fail: k won and none lost have p = 2 ** -k, which is below LEVEL from 6 on.
    """
    fewest = math.ceil(-math.log2(LEVEL))
    if n < fewest:
        return math.inf
    if spread is None:
        return fewest / n
    normal = NormalDist()
    return (normal.inv_cdf(1 - LEVEL) + normal.inv_cdf(POWER)) * spread / math.sqrt(n)


def _differences(ours: Samples, baseline: Samples, *, ratio: bool) -> list[float]:
    """Returns each document's difference, ours less the baseline's, in the order of the documents' hashes.

    Of a ratio it is divided by the mean weight, so that the mean of all is the difference of the two ratios.
    """
    # A sample that was read from a file may have null for its value.
    if not all(isinstance(one.value, int | float) and math.isfinite(one.value) for one in (*ours, *baseline)):
        raise ValueError("a document has no finite value")
    first, second = (sorted(side, key=lambda one: (one.doc, one.value)) for side in (ours, baseline))
    if [one.doc for one in first] != [one.doc for one in second]:
        raise ValueError("the two are not of the same documents")
    if len(first) < 2:
        raise ValueError(f"there is nothing to compare in {len(first)} documents; at least 2 are needed")
    if not ratio:
        return [one.value - other.value for one, other in zip(first, second, strict=True)]
    mean = sum(one.weight for one in first) / len(first)
    if not mean > 0 or [one.weight for one in first] != [one.weight for one in second]:
        raise ValueError("the documents are not as long in the one as in the other, or empty")
    return [(one.value - other.value) / mean for one, other in zip(first, second, strict=True)]
