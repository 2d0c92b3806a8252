"""Text in pieces is the text as a whole, cut at the first stop, and no piece ends within a character."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.serve.text import Text


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def pieces_of(text: bytes, stops: Sequence[str], sizes: Sequence[int] = ()) -> tuple[list[str], Text]:
    """The pieces that come of a token per byte, which arrive a few at a time."""
    made, cut, place = [], Text(decode, stops), 0
    for size in [*sizes, *[1] * len(text)]:
        place = min(place + size, len(text))
        made.append(cut.add(list(text[:place]), place == len(text)))
        if cut.stopped or place == len(text):
            break
    return made, cut


@pytest.mark.parametrize(
    ("text", "stops", "pieces"),
    [
        ("abc", [], ["a", "b", "c"]),
        ("é", [], ["", "é"]),
        ("a€b", [], ["a", "", "", "€", "b"]),
        ("abc", ["b"], ["a", ""]),
        ("abcd", ["bc"], ["a", "", ""]),
        ("abXd", ["bc"], ["a", "", "bX", "d"]),
        ("aab", ["ab"], ["", "a", ""]),
        ("ab", ["abc"], ["", "ab"]),
        ("xaby", ["by", "ab"], ["x", "", ""]),
        ("a€", ["€"], ["a", "", "", ""]),
        ("abc", ["abc", "b"], ["", "a"]),
        ("END", ["END"], ["", "", ""]),
    ],
)
def test_a_stop_is_cut_and_a_character_comes_whole(text: str, stops: list[str], pieces: list[str]) -> None:
    made, cut = pieces_of(text.encode(), stops)
    assert made == pieces
    assert cut.stopped == any(stop in text for stop in stops)


@given(
    st.text("abé€😀\ufffd ", max_size=20),
    st.lists(st.text("abé€", min_size=1, max_size=3), max_size=4),
    st.lists(st.integers(1, 5), max_size=20),
)
def test_pieces_are_the_text_before_the_first_stop(text: str, stops: list[str], sizes: list[int]) -> None:
    made, _ = pieces_of(text.encode(), stops, sizes)
    whole = text.rstrip("\ufffd")
    found = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    assert "".join(made) == (whole[: min(found)[1]] if found else whole)


def test_a_character_that_the_limit_cuts_in_two_is_left_out() -> None:
    made, _ = pieces_of("a😀".encode()[:-1], [])
    assert "".join(made) == "a"
    made, _ = pieces_of(b"a\xffb", [])  # what is no character ever stands for itself
    assert "".join(made) == "a\ufffdb"
