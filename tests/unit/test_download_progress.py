"""The download's progress line: what fits, with a bar in the room that is left."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.observe.progress import bar, download_parts, progress_line

STATUS: dict[str, Any] = {
    "looked": True,
    "files": {"verified": 3, "released": 1, "fetching": 2, "waiting": 2},
    "bytes_done": 50,
    "bytes_of": 100,
    "eta_s": 90,
    "rate_bytes_per_second": 2e6,
}


def line_of(status: dict[str, Any], width: int) -> str:
    return progress_line(download_parts(status), status, width)


@pytest.mark.parametrize("width", range(0, 130, 7))
def test_it_never_is_wider_than_the_terminal_and_tells_the_weightiest_first(width: int) -> None:
    line = line_of(STATUS, width)
    assert len(line) <= width
    assert line.startswith("4/8 files") or width < len("4/8 files")


def test_before_the_first_look_it_says_what_is_done_and_no_number() -> None:
    nothing = {"files": {"verified": 0, "waiting": 0}}
    assert line_of({**nothing, "looked": False}, 80) == "looking at the source"
    assert line_of({**nothing, "looked": True}, 80) == "0/0 files", "an empty source is known to be one"


def test_a_bar_stands_where_there_is_room_and_a_size() -> None:
    words = "4/8 files  50.0 % of 100 B  1 min 30 s left  2.0 MB/s  2 fetching"
    assert line_of(STATUS, len(words) + 22) == f"{words}  [{'#' * 9}{'.' * 9}]"
    assert "[" not in line_of(STATUS, 70)
    assert "[" not in line_of({**STATUS, "bytes_of": 0}, 100)
    assert (bar(0, 12), bar(1, 12), bar(1.7, 12)) == ("[..........]", "[##########]", "[##########]")
