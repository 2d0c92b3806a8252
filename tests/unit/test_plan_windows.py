"""Windows read from shard sets: the right tokens across files and sets, and no others."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.log import PERMUTATION, Segment, segment_key
from stoker.plan.permutation import permute
from stoker.plan.windows import SegmentReader, WindowReader
from stoker.store.errors import DataError
from support.plan_data import write_set

SEQ = 5


def segment_of(sets: list[tuple[str, str]], tokens: int) -> Segment:
    windows = max(0, (tokens - 1) // SEQ)
    return Segment(0, 0, tuple(sets), SEQ, windows, tokens - windows * SEQ, segment_key(1, 0), PERMUTATION)


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=0, max_size=4), min_size=1, max_size=4), st.integers(1, 3)
)
def test_windows_are_those_of_the_concatenated_streams(
    tmp_path_factory: pytest.TempPathFactory, layout: list[list[int]], most_maps: int
) -> None:
    root = tmp_path_factory.mktemp("shards")
    total = sum(map(sum, layout))
    stream = np.random.default_rng(0).integers(0, 1000, total)
    sets, start = [], 0
    for number, files in enumerate(layout):
        parts = []
        for length in files:
            parts.append(stream[start : start + length].tolist())
            start += length
        sets.append(write_set(root, f"set {number}", parts))

    reader = SegmentReader(segment_of(sets, total), root, vocab_size=1000, most_maps=most_maps)

    assert reader.windows == max(0, (total - 1) // SEQ)
    got = reader.read(np.arange(reader.windows)[::-1])
    assert got.dtype == np.int64
    assert got.shape == (reader.windows, SEQ + 1)
    for row, window in zip(got, range(reader.windows - 1, -1, -1), strict=True):
        assert row.tolist() == stream[window * SEQ : window * SEQ + SEQ + 1].tolist()


def test_offsets_are_read_in_the_permutations_order(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(60), range(60, 101)])
    reader = SegmentReader(segment_of([pair], 101), tmp_path, vocab_size=1000)
    images = permute(reader.segment.key, 20, np.arange(20))
    assert reader.at_offsets(range(3, 9))[:, 0].tolist() == [image * SEQ for image in images[3:9]]
    assert sorted(reader.at_offsets(range(20))[:, 0].tolist()) == list(range(0, 100, SEQ))


def test_four_byte_ids_are_read_as_well(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(70_000, 70_011)], dtype="uint32", vocab_size=100_000)
    reader = WindowReader([pair], tmp_path, seq_len=SEQ, vocab_size=100_000)
    assert reader.read([1]).tolist() == [list(range(70_005, 70_011))]


def test_no_more_maps_are_open_than_allowed(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(11)] * 20)
    reader = WindowReader([pair], tmp_path, seq_len=SEQ, vocab_size=1000, most_maps=4)
    reader.read(np.arange(reader.windows))
    with Path("/proc/self/maps").open() as maps:
        assert sum(str(tmp_path) in line for line in maps) <= 4
    reader.close()


def test_cold_windows_are_asked_for_together_and_warm_ones_are_not(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(1000), [1] * 400_000])
    seq_len = mmap.PAGESIZE  # windows lie in pages of their own
    reader = WindowReader([pair], tmp_path, seq_len=seq_len, vocab_size=1000)
    for file in tmp_path.glob("*/*.bin"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = resource.getrusage(resource.RUSAGE_THREAD)
    reader.read(np.arange(0, reader.windows, 2))
    after = resource.getrusage(resource.RUSAGE_THREAD)
    if after.ru_inblock == before.ru_inblock:
        pytest.skip("the files of tests are in memory here")
    assert reader.is_cold
    assert after.ru_majflt - before.ru_majflt < reader.windows / 4, "each window was waited for by itself"
    reader.read(np.arange(0, reader.windows, 2))
    assert not reader.is_cold


@pytest.mark.parametrize("change", ["manifest", "shorter", "longer", "gone", "no manifest"])
def test_a_set_that_is_not_the_one_named_is_refused_at_open(tmp_path: Path, change: str) -> None:
    pair = write_set(tmp_path, "a", [range(30)])
    directory = tmp_path / pair[0][:16]
    file, manifest = directory / "train-00000.bin", directory / "manifest.json"
    match change:
        case "manifest":
            manifest.write_bytes(manifest.read_bytes() + b" ")
        case "shorter":
            file.write_bytes(file.read_bytes()[:-2])
        case "longer":
            file.write_bytes(file.read_bytes() + b"\0\0")
        case "gone":
            file.unlink()
        case "no manifest":
            manifest.unlink()
    with pytest.raises(DataError, match=str(manifest if "manifest" in change else file)):
        SegmentReader(segment_of([pair], 30), tmp_path, vocab_size=1000)


def test_a_plan_entry_that_counts_otherwise_is_refused(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(30)])
    with pytest.raises(DataError, match="plan entry 0 has 5 windows"):
        SegmentReader(segment_of([pair], 29 - 3), tmp_path, vocab_size=1000)


def test_an_id_beyond_the_vocabulary_names_file_and_token(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(20), [1, 2, 999, 1000, 4, 5]])
    reader = WindowReader([pair], tmp_path, seq_len=SEQ, vocab_size=1000)
    reader.read([0, 1, 2])
    with pytest.raises(DataError, match=r"train-00001\.bin: token 3 is 1000, beyond the vocabulary of 1000"):
        reader.read([0, 4])


def test_a_window_that_is_not_there_is_no_window(tmp_path: Path) -> None:
    pair = write_set(tmp_path, "a", [range(20)])
    reader = WindowReader([pair], tmp_path, seq_len=SEQ, vocab_size=1000)
    for window in (-1, 3):
        with pytest.raises(IndexError):
            reader.read([window])


def test_sets_of_two_widths_are_refused(tmp_path: Path) -> None:
    sets = [write_set(tmp_path, "a", [range(9)]), write_set(tmp_path, "b", [range(9)], dtype="uint32")]
    with pytest.raises(DataError, match="dtype"):
        WindowReader(sets, tmp_path, seq_len=SEQ, vocab_size=1000)
