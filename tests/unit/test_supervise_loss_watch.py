"""The loss watch: what is a spike, a divergence, a plateau, and that ordinary training is none of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.supervise.health.loss_watch import CALM, HOLD, LEAST, WINDOW, LossWatch

# Of a run of `scripts/demo`: two million parameters, batches of 2,048 tokens of text, from step 1 on.
REAL = (
    "8.33 8.29 8.24 8.16 8.05 7.95 7.85 7.82 7.71 7.62 7.50 7.37 7.28 7.15 7.07 6.87 6.91 6.81 6.94 "
    "6.75 6.61 6.68 6.75 6.73 6.59 6.97 6.97 6.67 6.60 6.73 6.61 6.82 6.57 6.56 6.50 6.51 6.64 6.60 "
    "6.52 6.36 6.61 6.54 6.79 6.69 6.57 6.57 6.62 6.63 6.53 6.65 6.49 6.28 6.73 6.53 6.65 6.52 6.46 "
    "6.52 6.51 6.50 6.52 6.59 6.25 6.22 6.35 6.17 6.52 6.55 6.31 6.48 6.39 6.25 6.20 6.15 6.21 6.16 "
    "6.05 6.25 6.33 6.50 6.24 6.29 6.28 6.01 5.95 6.17 6.23 6.06 6.24 6.22 6.16 6.13 6.40 6.10 5.96 "
    "6.01 6.07 6.27 5.96 5.90 6.01 6.04 5.84 6.08 5.81 5.83 6.18 5.83 6.09 5.89 5.88 5.76 5.74 5.72 "
    "5.66 5.72 5.98 5.67 5.97 5.74 6.01 5.85 5.44 5.73 6.24 5.60 5.75 5.64 5.79 5.89 5.71 5.59 5.77 "
    "5.69 5.71 5.86 5.70 5.79 5.94 5.77 5.69 5.84 5.65 5.69 5.96 5.77 5.83 5.74 5.52 5.87 5.77 5.66 "
    "5.38 5.29 5.53 5.90 5.87 5.66 5.54 5.65 5.54 5.68 5.39 5.42 5.69 5.53 5.54 5.45 5.47 5.49 5.48 "
    "5.46 5.64 5.54 5.57 5.30 5.38 5.44 5.42 5.31 5.38 5.79 5.82 5.57 5.57 5.62 5.57 5.65 5.35 5.42 "
    "5.60 5.61 5.50 5.49 5.57 5.51 5.46 5.72 5.73 5.40 5.40 5.53 5.78 5.59 5.76 5.50 5.14 5.50 5.67 "
    "5.43 5.40 5.72 5.23 5.34 5.72 5.50 5.64 5.44 5.44 5.70 5.42 5.34 5.53 5.29 5.44 5.01 5.55 5.64 "
    "5.39 5.19 5.48 5.55 5.33 5.41 5.49 5.46 5.41 5.67 5.41 5.37"
)


def told(losses: Iterable[float | None], watch: LossWatch | None = None) -> list[tuple[str, bool, int, int]]:
    """What begins and ends: kind, whether it ends, first step, step."""
    watch = watch or LossWatch()
    return [
        (change.episode.kind, change.is_end, change.episode.first, change.step)
        for step, loss in enumerate(losses, 1)
        for change in watch.add(step, loss, [0, 4 * step])
    ]


def noisy(curve: Callable[[int], float], steps: int, sigma: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [curve(step) + draw.gauss(0, sigma) for step in range(1, steps + 1)]


def chinchilla(step: int) -> float:
    """Hoffmann et al. 2022 for 474 million parameters and batches of 262,144 tokens."""
    return min(10.4, 1.69 + 406.4 / 474e6**0.34 + 410.7 / (step * 262_144) ** 0.28)


@pytest.mark.parametrize("sigma", [0.0, 0.005, 0.03, 0.2])
def test_ordinary_training_is_nothing_from_its_first_step_on(sigma: float) -> None:
    assert told(noisy(chinchilla, 20_000, sigma)) == []


def test_a_real_curve_is_nothing() -> None:
    assert told(float(loss) for loss in REAL.split()) == []


def test_warm_up_at_one_level_then_a_steep_descent_and_the_decay_of_wsd_are_nothing() -> None:
    def curve(step: int) -> float:
        descent = 10.4 if step < 300 else chinchilla(step - 299)
        return descent - 0.15 * max(0.0, (step - 16_000) / 4000)

    assert told(noisy(curve, 20_000, 0.03)) == []


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 2**32), st.sampled_from(["normal", "uniform", "laplace", "student"]),
    st.floats(0.5, 12.0), st.floats(1e-4, 0.05), st.floats(0.0, 0.9),
)  # fmt: skip
def test_no_noise_that_a_batch_may_have_is_a_spike(
    seed: int, kind: str, level: float, share: float, falls: float
) -> None:
    draw = random.Random(seed)
    noises: dict[str, Callable[[], float]] = {
        "normal": lambda: draw.gauss(0, 1),
        "uniform": lambda: draw.uniform(-2, 2),
        "laplace": lambda: draw.expovariate(1) - draw.expovariate(1),
        "student": lambda: draw.gauss(0, 1) / math.sqrt(draw.gammavariate(2.5, 2) / 5),
    }
    curve = [level * (1 + falls * 50 / (50 + step)) for step in range(2000)]
    assert not told(one + share * level * noises[kind]() for one in curve)


def test_a_spike_is_told_when_it_holds_with_its_windows_and_once() -> None:
    losses = noisy(lambda _: 3.0, 700, 0.03)
    for step in range(601, 601 + 10):
        losses[step - 1] += 0.5
    watch = LossWatch()
    assert told(losses[:602], watch) == []
    (change,) = watch.add(603, losses[602], [0, 4 * 603])
    spike = change.episode
    assert (spike.first, spike.step, spike.begins, spike.ends) == (601, 603, [0, 2400], [0, 2412])
    assert spike.words()["windows"] == [[0, 2400], [0, 2412]]
    assert spike.median == pytest.approx(3.0, abs=0.01) and spike.loss == pytest.approx(3.5, abs=0.15)
    later = [
        change for step in range(604, 701) for change in watch.add(step, losses[step - 1], [0, 4 * step])
    ]
    assert [(one.is_end, one.step, one.episode.last) for one in later] == [(True, 610 + CALM, 610)]
    assert later[0].episode.ends == [0, 2440] and not watch.standing


@pytest.mark.parametrize(("high", "is_spike"), [(HOLD - 1, False), (HOLD, True)])
def test_steps_in_a_row_count_and_nan_neither_counts_nor_breaks_the_row(high: int, is_spike: bool) -> None:
    losses: list[float | None] = [*noisy(lambda _: 3.0, 200, 0.03)]
    for _ in range(high):
        losses += [3.6, None, math.nan, math.inf]
    assert bool(told([*losses, *noisy(lambda _: 3.0, 50, 0.03)])) is is_spike
    apart = [*noisy(lambda _: 3.0, 200, 0.03), 3.6, 3.0, 3.6, 3.0, 3.6, 3.0]
    assert told(apart) == []


def test_nan_does_not_move_the_median() -> None:
    watch = LossWatch()
    assert told([None, math.nan, math.inf] * 500, watch) == []
    assert told([3.0] * 20, watch) == [] and watch.median == 3.0


def test_a_huge_step_is_told_at_once_and_a_small_excess_never() -> None:
    quiet = [3.0 + 0.001 * (-1) ** step for step in range(400)]
    assert told([*quiet, 5.0])[0][:3] == ("spike", False, 401)
    assert told([*quiet, *[3.14] * 100]) == [], "five hundredths of the loss are no spike, with any noise"
    assert told([*quiet[: LEAST - 1], 9.0]) == [], "what is usual is not known yet"


def test_a_lasting_rise_is_a_spike_then_a_divergence_until_the_loss_is_back() -> None:
    levels = [3.0] * 2000 + [3.6] * 1500 + [3.0] * 1500
    draw = random.Random(5)
    found = told(level + draw.gauss(0, 0.03) for level in levels)
    assert [one[:2] for one in found] == [
        ("spike", False), ("diverged", False), ("spike", True), ("diverged", True),
    ]  # fmt: skip
    assert found[0][2] == 2001 and found[2][3] == 2001 + WINDOW
    assert 2001 + WINDOW // 2 <= found[1][3] <= 2010 + WINDOW // 2
    assert 3500 + WINDOW // 2 <= found[3][3] <= 3500 + 2 * WINDOW


def test_a_slow_steady_rise_is_a_divergence_and_a_wave_is_none() -> None:
    rising = told(noisy(lambda step: 3.0 + max(0, step - 4096) * 5e-5, 8192, 0.03))
    assert [one[:2] for one in rising] == [("diverged", False)]
    assert 4096 + 4 * WINDOW <= rising[0][3] <= 4096 + 6 * WINDOW
    assert told(noisy(lambda step: 3.0 + 0.05 * math.sin(step / 500), 8000, 0.03)) == []


def test_a_plateau_is_told_where_a_gain_could_be_seen_and_ends_with_one() -> None:
    def curve(step: int) -> float:
        return max(2.5, 4.0 - step / 2000) - max(0.0, (step - 24_000) / 20_000)

    found = told(noisy(curve, 40_000, 0.05))
    assert [one[:2] for one in found] == [("plateau", False), ("plateau", True)]
    assert 3000 + 16 * WINDOW / 2 < found[0][3] < 24_000 < found[1][3] < 30_000
    assert told(noisy(lambda _: 2.5, 12_000, 0.5)) == [], "noise could hide a gain that matters"


def test_a_log_of_every_tenth_step_has_a_plateau_that_begins_at_a_step_of_it() -> None:
    watch, losses = LossWatch(), noisy(lambda step: 3.0 if step <= WINDOW else 2.5, 9000, 0.02)
    found = [change for step, loss in enumerate(losses) for change in watch.add(10 * step, loss)]
    assert [(one.episode.kind, one.episode.first) for one in found] == [("plateau", 10 * WINDOW - 9)]


@pytest.mark.parametrize("kind", ["spike", "diverged", "plateau"])
def test_what_stands_is_the_same_after_all_steps_were_read_again(kind: str) -> None:
    losses = {
        "spike": [*noisy(lambda _: 3.0, 600, 0.03), *[4.0] * 5],
        "diverged": [*noisy(lambda _: 3.0, 600, 0.03), *[4.0] * 600],
        "plateau": noisy(lambda _: 3.0, 10_000, 0.03),
    }[kind]
    first, second = LossWatch(), LossWatch()
    assert told(losses, first) == told(losses, second)
    assert first.standing == second.standing and kind in first.standing
