"""Another look at a quarantined file: what it says of it, and what a release leaves behind at every step."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.sources import Source, SourceState
from stoker.shards.audit.recheck_worker import main as look
from stoker.store.errors import UnavailableError
from support.builds import Recorder
from support.parquet import flip_page, write_fineweb


class Place:
    """A source folder, a quarantine folder and hot."""

    def __init__(self, home: Path) -> None:
        self.origin, self.kept = home / "source" / "a.parquet", home / "quarantine" / "a-1.parquet"
        self.target = home / "hot" / "parquet" / "a-1.parquet"
        self.good = write_fineweb(home / "good.parquet", 60, seed=3, row_group=20).read_bytes()
        spoiled = flip_page(write_fineweb(home / "bad.parquet", 60, seed=3, row_group=20), row_group=1)
        self.bad = spoiled.read_bytes()
        for file in (self.origin, self.kept):
            file.parent.mkdir()
        (self.origin.parent / "another.parquet").write_bytes(b"the folder is not empty")

    def look(self, content: bytes, **changes: Any) -> dict[str, Any]:
        """Look for this content, as the record has it."""
        task = {
            "home": str(self.origin.parent),
            "origin": str(self.origin),
            "kept": str(self.kept),
            "target": str(self.target),
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "text_column": "text",
            "columns": {"language": "text"},
            "floor": 0,
            "decode": True,
            **changes,
        }
        return look(task, Recorder())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_good_where_it_came_from_is_good(place: Place) -> None:
    place.origin.write_bytes(place.good)
    found = place.look(place.good)
    assert (found["status"], found["place"]) == ("good", "origin")
    assert not place.target.exists()


def test_what_is_still_bad_is_told_with_its_place_and_by_force_taken_for_good(place: Place) -> None:
    place.origin.write_bytes(place.bad)
    found = place.look(place.bad)
    assert (found["status"], found["reason"], found["row_group"], found["column"]) == (
        "bad",
        "page_corrupt",
        1,
        "text",
    )
    assert str(Finding.of(found)) == f"page_corrupt in row group 1, column text: {found['detail']}"
    assert place.look(place.bad, decode=False)["status"] == "good"


def test_a_filters_column_of_the_wrong_kind_is_still_bad_at_another_look(place: Place) -> None:
    place.origin.write_bytes(place.good)
    found = place.look(place.good, columns={"language": "number"})
    assert (found["status"], found["reason"], found["column"]) == ("bad", "column_type", "language")


@pytest.mark.parametrize("origin", [None, b"something else"])
def test_a_copy_that_was_kept_takes_the_place_of_a_file_that_is_gone_or_another(
    place: Place, origin: bytes | None
) -> None:
    if origin is not None:
        place.origin.write_bytes(origin)
    place.kept.write_bytes(place.good)
    assert place.look(place.good)["place"] == "kept"
    assert place.target.read_bytes() == place.good
    assert place.look(place.good)["place"] == "kept"  # again, after a crash
    assert place.kept.exists()


def test_another_content_and_none_are_told_apart(place: Place) -> None:
    assert place.look(place.good)["status"] == "gone"
    assert place.look(place.good, origin=None, kept=None)["status"] == "gone"
    place.kept.write_bytes(place.bad)  # not what was convicted either
    assert place.look(place.good)["status"] == "gone"
    place.origin.write_bytes(place.bad)
    found = place.look(place.good)
    assert found == {"status": "changed", "sha256": hashlib.sha256(place.bad).hexdigest()}


def test_a_source_folder_that_is_away_says_nothing_of_its_files(place: Place) -> None:
    for file in place.origin.parent.iterdir():
        file.unlink()
    with pytest.raises(UnavailableError, match="mount it"):
        place.look(place.good)


def source(state: SourceState, reason: str | None = None, sha256: str = "5" * 64) -> Source:
    return Source("prose", "a", 9, sha256, state=state, reason=reason, attempts=3, deaths=(1, 1))


def test_a_source_that_is_judged_again_has_neither_attempts_nor_deaths() -> None:
    again = source("quarantined", "page_corrupt").renewed(size=9, sha256="5" * 64)
    assert (again.state, again.attempts, again.deaths, again.sha256) == ("seen", 0, (), "5" * 64)
