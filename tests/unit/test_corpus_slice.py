"""A bounded slice: whole files in listing order, the same whatever order they were built in."""

from __future__ import annotations

import itertools
import random

import pytest

from stoker.config.schema import Limit
from stoker.corpus.records.dataset import Slice, slice_of
from stoker.corpus.records.sources import Source, SourceState
from support.books import books_of


def source(path: str, rows: int = 10, state: SourceState = "proven", content: str = "") -> Source:
    """A source whose set has that many rows, 5 train and 1 val tokens each."""
    books = books_of(5 * rows, rows, rows=rows)
    ended = state in ("proven", "synced", "released")
    return Source(
        "prose", path, 1, content or f"sha of {path}", state, f"key {path}", books=books if ended else None
    )


def standing(*sources: Source) -> dict[str, Source]:
    return {one.path: one for one in sources}


ABCDE = tuple("abcde")


def beyond(part: Slice) -> str:
    """Those of a to e that the slice leaves out."""
    return "".join(path for path in "abcde" if path in part.beyond)


@pytest.mark.parametrize(
    ("limit", "taken", "full"),
    [
        (Limit(files=2), "ab", False),
        (Limit(files=9), "abcde", False),
        (Limit(rows=1), "a", True),
        (Limit(rows=10), "a", True),
        (Limit(rows=11), "ab", True),
        (Limit(rows=1000), "abcde", False),
        (Limit(tokens=60), "a", True),
        (Limit(tokens=61), "ab", True),
        (Limit(tokens=150), "abc", True),
        (Limit(files=4, rows=25), "abc", True),
        (Limit(files=2, rows=25), "ab", False),
        (Limit(rows=25, tokens=61), "ab", True),
    ],
)
def test_whole_files_are_taken_until_a_limit_is_reached(limit: Limit, taken: str, full: bool) -> None:
    part = slice_of(ABCDE, standing(*map(source, ABCDE)), limit)
    assert "".join(part.paths) == taken
    assert part.settled
    assert beyond(part) == "".join(path for path in "abcde" if path not in taken)
    assert part.full == full


def test_a_file_behind_an_open_one_is_neither_in_nor_out() -> None:
    sources = standing(source("a"), source("b", state="building"), source("c"), source("d"))
    part = slice_of(ABCDE, sources, Limit(rows=25))
    assert part.paths == ("a", "b")
    assert not part.settled and not part.full
    assert beyond(part) == ""
    with_files = slice_of(ABCDE, sources, Limit(rows=25, files=3))
    assert beyond(with_files) == "de"


def test_an_open_file_hides_nothing_from_a_limit_of_files() -> None:
    part = slice_of(ABCDE, standing(source("b")), Limit(files=3))
    assert part.paths == ("a", "b", "c")
    assert part.settled and not part.full
    assert beyond(part) == "de"


def test_an_open_file_behind_a_full_slice_does_not_keep_it_from_being_settled() -> None:
    part = slice_of(ABCDE, standing(source("a"), source("b")), Limit(rows=20))
    assert (part.paths, part.settled, part.full) == (("a", "b"), True, True)


def test_quarantined_files_count_nothing_and_a_content_counts_once() -> None:
    sources = standing(
        source("a", state="quarantined"),
        source("b", content="same"),
        source("c", state="duplicate", content="same"),
        source("d"),
        source("e"),
    )
    part = slice_of(ABCDE, sources, Limit(rows=20))
    assert part.paths == ("a", "b", "c", "d")


def test_a_content_is_taken_where_it_is_listed_first_whichever_path_was_built() -> None:
    """Then the set's own path comes along: the plan finds sets by the paths that have them."""
    one = standing(source("a", content="same"), source("b"), source("d", state="duplicate", content="same"))
    other = standing(source("a", state="duplicate", content="same"), source("b"), source("d", content="same"))
    limit = Limit(rows=20)
    assert slice_of(ABCDE, one, limit).paths == ("a", "b")
    assert slice_of(ABCDE, other, limit).paths == ("a", "b", "d")
    for sources in (one, other):
        part = slice_of(ABCDE, sources, limit)
        contents = {sources[path].sha256 for path in part.paths if sources[path].state == "proven"}
        assert contents == {"same", "sha of b"}


def test_a_raised_limit_lets_the_rest_join_and_a_lowered_one_takes_nothing_away() -> None:
    sources = standing(*map(source, ABCDE))
    first = slice_of(ABCDE, sources, Limit(rows=25))
    assert first.paths == ("a", "b", "c")
    assert first.stayed == ()
    raised = slice_of(ABCDE, sources, Limit(rows=45), kept=first.paths)
    assert raised.paths == ABCDE
    lowered = slice_of(ABCDE, sources, Limit(rows=5), kept=first.paths)
    assert (lowered.paths, lowered.stayed) == (("a", "b", "c"), ("b", "c"))
    assert beyond(lowered) == "de"
    fewer_files = slice_of(("a",), sources, Limit(files=1), kept=first.paths)
    assert (fewer_files.paths, beyond(fewer_files)) == (("a", "b", "c"), "")


def test_the_slice_is_the_same_for_every_order_of_building() -> None:
    """And what is in it once stays in it while the others come to their end."""
    random_ = random.Random(7)
    for _ in range(60):
        paths = [f"{number:02d}" for number in range(random_.randint(1, 9))]
        contents = [random_.choice("uvwxyz") for _ in paths]
        rows = {content: random_.randint(0, 30) for content in contents}
        refused = {path for path in paths if random_.random() < 0.2}
        limit = Limit(
            rows=random_.choice([None, random_.randint(1, 90)]),
            tokens=random_.choice([None, random_.randint(1, 500)]),
            files=random_.choice([None, random_.randint(1, 9)]),
        )
        ends = set()
        for order in itertools.islice(itertools.permutations(paths), 0, 200, 17):
            sources: dict[str, Source] = {}
            owners: set[str] = set()
            before: frozenset[str] = frozenset()
            for path in order:
                content = contents[paths.index(path)]
                if path in refused:
                    sources[path] = source(path, state="quarantined", content=f"bad {path}")
                elif content in owners:
                    sources[path] = source(path, state="duplicate", content=content)
                else:
                    owners.add(content)
                    sources[path] = source(path, rows[content], content=content)
                part = slice_of(paths, sources, limit)
                assert before <= set(part.paths)
                assert not any(path in part.beyond for path in part.paths)
                before = frozenset(part.paths) & sources.keys()
            assert part.settled
            ends.add((frozenset(sources[one].sha256 for one in part.paths if one not in refused), part.full))
        assert len(ends) == 1
