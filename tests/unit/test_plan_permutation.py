"""feistel8-v1: a permutation for every size, looking random, and the same for ever."""

from __future__ import annotations

import hashlib
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan import permutation
from stoker.plan.permutation import BLOCK, invert, permute

KEY = hashlib.sha256(b"stoker").hexdigest()

# Fixed by plans on disk: a change here means another name for the permutation.
GOLDEN_10 = [8, 3, 1, 2, 9, 4, 6, 5, 0, 7]
GOLDEN_364 = [344, 320, 111, 209, 333, 217, 57, 109]
GOLDEN_BILLION = [98039017, 661483479, 561861253, 625621873]
GOLDEN_MOST = [2902950569349341941, 1514950796401259431, 2870579595497965330, 3612204348675627702]
GOLDEN_DIGESTS = {  # of all images, as little-endian int64
    2: "4cbbd8ca5215b8d161aec181a74b694f4e24b001d5b081dc0030ed797a8973e0",
    3: "53afea624a503a0bf39e469e8979f67fcb1890ea0392adf9e155124f5ede9ebb",
    4: "a316284708b9e892052f174f41b1c3318a3078253bb9082a2b2270f4935fc4f2",
    5: "47d4b7dd34f6c609265b1e0c7118b87d19a49c6237068c0d686f168d6d7baca0",
    16: "60d695ec66fb16e868607820f34f2d014554efa86d8c570703a4079756d9eafe",
    17: "be731a1a45676ef08f628aed750cf4cacba22395246d8db10b3e7717b63d4a12",
    300: "c0ea9fbf1aa96d76e501396b00cae67cda681e81f8c5295c5f72ff3838b08c35",
    65537: "6b95462ae8a3b99d01294e8823568edb6289632735b431882a30c78664f5ea33",
    1000000: "1fcb89e757d31e5195f07c720c98126270fd884f03801a899e28f9714b326493",
}


def by_hand(key: str, n: int, offset: int) -> int:
    """The same permutation in plain integers, a value at a time."""
    half = max(1, -(-max(n - 1, 1).bit_length() // 2))
    mask, word = (1 << half) - 1, (1 << 64) - 1
    keys = [
        int.from_bytes(hashlib.sha256(bytes.fromhex(key) + bytes([i])).digest()[:8], "little")
        for i in range(8)
    ]
    while True:
        left, right = offset >> half, offset & mask
        for round_key in keys:
            mixed = right ^ round_key
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) & mask)
        offset = (left << half) | right
        if offset < n:
            return offset


def test_it_is_a_bijection_for_every_size_up_to_300() -> None:
    for n in range(1, 301):
        assert sorted(permute(KEY, n, np.arange(n)).tolist()) == list(range(n))


def test_its_inverse_leads_back_for_every_size_up_to_300() -> None:
    for n in range(1, 301):
        assert invert(KEY, n, permute(KEY, n, np.arange(n))).tolist() == list(range(n))


@given(st.integers(1, 2**62), st.data())
def test_its_inverse_leads_back_and_forth_at_any_size(n: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    assert invert(KEY, n, permute(KEY, n, places)).tolist() == places
    assert permute(KEY, n, invert(KEY, n, places)).tolist() == places


@pytest.mark.parametrize("places", [[-1], [10]])
def test_its_inverse_takes_no_window_outside(places: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        invert(KEY, 10, places)


SAMPLED = sorted(random.Random(3).sample(range(301, 10**6), 24))


@pytest.mark.parametrize("n", [4**9, 4**9 + 1, 10**6, 1_000_003, *SAMPLED])
def test_it_is_a_bijection_for_large_sizes(n: int) -> None:
    images = permute(KEY, n, np.arange(n))
    assert np.bincount(images, minlength=n).max() == 1
    assert images.min() == 0


@given(st.integers(1, 2**62), st.data())
def test_it_stays_inside_and_agrees_with_plain_integers_at_any_size(n: int, data: st.DataObject) -> None:
    offsets = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    images = permute(KEY, n, offsets)
    assert images.tolist() == [by_hand(KEY, n, offset) for offset in offsets]
    assert images.min() >= 0
    assert images.max() < n
    assert len(set(images.tolist())) == len(set(offsets))


def test_its_values_never_change() -> None:
    assert permute(KEY, 10, range(10)).tolist() == GOLDEN_10
    assert permute(KEY, 364, range(8)).tolist() == GOLDEN_364
    assert permute("00" * 32, 10**9, [0, 1, 2, 10**9 - 1]).tolist() == GOLDEN_BILLION
    assert permute("ff" * 32, 2**62, [0, 1, 2**61, 2**62 - 1]).tolist() == GOLDEN_MOST
    assert permute(KEY, 1, [0]).tolist() == [0]


@pytest.mark.parametrize(("n", "digest"), GOLDEN_DIGESTS.items())
def test_whole_orders_never_change(n: int, digest: str) -> None:
    assert hashlib.sha256(permute(KEY, n, np.arange(n)).astype("<i8").tobytes()).hexdigest() == digest


def test_blocks_and_order_of_asking_make_no_difference() -> None:
    n = BLOCK * 2 + 77
    images = permute(KEY, n, np.arange(n))
    picked = np.array([n - 1, 0, BLOCK, BLOCK - 1, 5])
    assert permute(KEY, n, picked).tolist() == images[picked].tolist()
    assert permute(KEY, n, picked.reshape(5, 1)).shape == (5, 1)
    assert permute(KEY, n, []).size == 0


def worst_chi_square(n: int) -> float:
    """Adjacent differences of the first million images in 1,000 cells: the worst of six keys, in sigma."""
    cells, worst = 1000, 0.0
    for number in range(6):
        images = permute(hashlib.sha256(f"key {number}".encode()).hexdigest(), n, np.arange(min(n, 10**6)))
        found = np.bincount((np.diff(images) % n) * cells // n, minlength=cells)
        edges = -(-np.arange(cells + 1) * n // cells)
        expected = (len(images) - 1) * np.diff(edges) / n
        z = (((found - expected) ** 2 / expected).sum() - (cells - 1)) / np.sqrt(2 * (cells - 1))
        worst = max(worst, abs(z))
    return worst


@pytest.mark.parametrize("n", [1_000_000, pytest.param(1 << 20, marks=pytest.mark.long)])
def test_differences_of_neighbours_are_spread_evenly(n: int) -> None:
    assert worst_chi_square(n) < 4


def test_too_few_rounds_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "ROUNDS", 3)
    assert worst_chi_square(1_000_000) > 10


def test_other_keys_give_other_orders() -> None:
    orders = {tuple(permute(hashlib.sha256(bytes([i])).hexdigest(), 50, np.arange(50))) for i in range(50)}
    assert len(orders) == 50


def test_memory_does_not_grow_with_the_corpus() -> None:
    peaks = []
    for n in (10**6, 10**12):
        tracemalloc.start()
        permute(KEY, n, np.arange(200_000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 16 << 20


def test_offsets_outside_are_refused() -> None:
    for n, offset in ((5, 5), (5, -1), (0, 0)):
        with pytest.raises(ValueError, match="outside"):
            permute(KEY, n, [offset])
