"""Where one shard ends and the next begins, whatever pieces the documents arrive in."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.shards.build.shard_writer import GrowingSet

SHARD_TOKENS = 20


def reference(lengths: list[int]) -> list[list[int]]:
    """Document by document: the end offsets in each shard."""
    shards: list[list[int]] = [[]]
    for length in lengths:
        held = shards[-1][-1] if shards[-1] else 0
        if shards[-1] and held + length > SHARD_TOKENS:
            shards.append([])
            held = 0
        shards[-1].append(held + length)
    return shards


def grow(directory: Path, lengths: list[int], cuts: list[int], reopen_at: int | None = None) -> GrowingSet:
    growing = GrowingSet(directory, "uint16", SHARD_TOKENS, {})
    tokens = np.arange(sum(lengths), dtype="<u2")
    rows = 3 * np.arange(len(lengths)) + 1
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    edges = sorted({0, len(lengths), *(cut for cut in cuts if cut <= len(lengths))})
    for number, (first, last) in enumerate(pairwise(edges)):
        if number == reopen_at:
            growing = GrowingSet(directory, "uint16", SHARD_TOKENS, growing.lengths())
        piece = np.asarray(lengths[first:last], dtype=np.int64)
        growing.splits["train"].append(tokens[ends[first] : ends[last]], piece, rows[first:last])
    return growing


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 30), max_size=40),
    st.lists(st.integers(0, 40), max_size=8),
    st.one_of(st.none(), st.integers(0, 4)),
)
def test_shards_are_cut_by_the_documents_alone(
    lengths: list[int], cuts: list[int], reopen_at: int | None
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        growing = grow(directory, lengths, cuts, reopen_at)
        shards = reference(lengths)
        assert len(growing.splits["train"].files) == len(shards)
        found, rows = [], []
        for shard, ends in zip(growing.splits["train"].files, shards, strict=True):
            assert np.fromfile(shard.ends.path, "<u8").tolist() == ends
            found.append(np.fromfile(shard.tokens.path, "<u2"))
            rows.append(np.fromfile(shard.rows.path, "<u8"))
            assert len(rows[-1]) == len(ends)
            for file in shard:
                data = file.path.read_bytes()
                assert file.length == len(data)
                assert file.written.hexdigest() == xxhash.xxh3_128_hexdigest(data)
        assert np.concatenate(found).tolist() == list(range(sum(lengths)))
        assert np.concatenate(rows).tolist() == list(range(1, 3 * len(lengths), 3))
        for file, _ in growing.unsettled():
            file.make_durable(close=True)


def test_a_set_without_documents_has_its_files_empty(tmp_path: Path) -> None:
    growing = GrowingSet(tmp_path, "uint32", SHARD_TOKENS, {})
    assert growing.lengths() == {
        f"{split}-00000.{kind}": 0 for split in ("train", "val") for kind in ("bin", "idx", "row")
    }
