"""What is kept in quarantine, what goes, what is looked at again, and what may go back: tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.quarantine.directory import (
    CLOCK_SLACK_S,
    OVER_BYTES,
    OVER_FILES,
    RELEASED,
    QuarantineEntry,
    drops,
    due,
    mark,
    read_quarantine,
    refusal,
)
from stoker.corpus.records.sources import EXCEEDS_DISK, Source, SourceState
from stoker.store.record import read_record, set_aside, write_record

DAY_S = 86_400.0


def kept(
    name: str, size: int = 10, *, kind: str = "parquet", at: int = 0, path: str = "a", **marks: Any
) -> QuarantineEntry:
    time = f"2026-11-20T12:00:{at:02d}Z"
    body = {"path": path, "sha256": "5" * 64, "reason": "page_corrupt", "time": time, **marks}
    return QuarantineEntry(f"{kind}-{name}", kind, ("thing",) if size else (), size, body)


def source(state: SourceState = "quarantined", path: str = "a", sha256: str = "5" * 64) -> Source:
    return Source("prose", path, 10, sha256, state=state)


def gone(
    *shelf: QuarantineEntry, files: int = 100, size: int = 1000, **sources: Source
) -> list[tuple[str, str]]:
    chosen = drops(shelf, sources, keep_files=files, keep_bytes=size)
    return [(kept.name.partition("-")[2], why) for kept, why in chosen]


class TestBudget:
    def test_within_it_everything_stays(self) -> None:
        assert gone(kept("c"), kept("b"), kept("a")) == []

    def test_the_oldest_go_by_count_for_each_kind_by_itself(self) -> None:
        shelf = (kept("c"), kept("x", kind="shards"), kept("b"), kept("a"), kept("y", kind="shards"))
        assert gone(*shelf, files=2) == [("a", OVER_FILES)]
        assert gone(*shelf, files=1) == [("b", OVER_FILES), ("a", OVER_FILES), ("y", OVER_FILES)]

    def test_the_oldest_go_by_bytes_and_what_is_gone_counts_nothing(self) -> None:
        assert gone(kept("c", 600), kept("b", 0), kept("a", 300), size=900) == []
        assert gone(kept("c", 600), kept("b", 400), kept("a", 100), size=900) == [
            ("b", OVER_BYTES),
            ("a", OVER_BYTES),
        ]

    def test_the_newest_stays_whatever_its_size_unless_nothing_is_kept(self) -> None:
        assert gone(kept("a", 5000)) == []
        assert gone(kept("a", 5000), files=0) == [("a", OVER_FILES)]

    def test_checkpoints_and_what_others_put_there_are_not_this_budgets(self) -> None:
        assert gone(kept("a", 10, kind="checkpoint"), kept("b", 10, kind="other"), files=0) == []

    def test_what_was_begun_is_finished_also_where_nothing_is_left(self) -> None:
        assert gone(kept("a", 0, dropping={"why": "x", "bytes": 9})) == [("a", "x")]

    @pytest.mark.parametrize(
        ("now", "goes"),
        [
            (source("seen"), False),
            (source("staged"), False),
            (source("building"), False),
            (source("proven"), True),
            (source("released"), True),
            (source("quarantined"), True),  # again, with a finding and a copy of its own
            (source("seen", sha256="6" * 64), True),
            (None, True),
        ],
    )
    def test_a_released_copy_stays_until_its_source_needs_it_no_more(
        self, now: Source | None, goes: bool
    ) -> None:
        sources = {} if now is None else {"a": now}
        found = gone(kept("a", released={"why": "x", "told": True}), **sources)
        assert found == ([("a", RELEASED)] if goes else [])

    def test_what_is_being_worked_on_is_left_alone(self) -> None:
        shelf = [kept("b"), kept("a", path="b"), kept("c", 0, path="b", dropping={"why": "x", "bytes": 1})]
        found = drops(shelf, {}, keep_files=0, keep_bytes=0, busy={"b"})
        assert [kept.name for kept, _ in found] == ["parquet-b"]


class TestDue:
    now = QuarantineEntry("parquet-x", "parquet", body={"time": "2026-11-20T12:00:00Z"}).looked_at

    def names(self, *shelf: QuarantineEntry, after: float, **changes: Any) -> list[str]:
        sources = changes.pop("sources", {"a": source()})
        options = {"every": DAY_S, **changes}
        return [each.name for each in due(shelf, sources.values(), now=self.now + after, **options)]

    def test_a_finding_is_due_a_day_after_it_and_after_each_look(self) -> None:
        assert self.names(kept("a"), after=DAY_S - 1) == []
        assert self.names(kept("a"), after=DAY_S) == ["parquet-a"]
        looked = kept("a", revalidated="2026-11-20T13:00:00Z")
        assert self.names(looked, after=DAY_S) == []
        assert self.names(looked, after=DAY_S + 3600) == ["parquet-a"]

    def test_never_where_it_is_off_unless_it_is_asked_for(self) -> None:
        assert self.names(kept("a"), after=99 * DAY_S, every=None) == []
        assert self.names(kept("a"), after=0, every=0.0) == ["parquet-a"]

    def test_a_file_whose_set_is_larger_than_the_disk_waits_for_people(self) -> None:
        sources = {"a": replace(source(), reason=EXCEEDS_DISK)}
        assert self.names(kept("a"), after=99 * DAY_S, sources=sources) == []
        for other in (source("proven"), replace(source(), imported=True)):
            assert self.names(kept("a"), after=DAY_S, sources={"a": other}) == []
        assert refusal(kept("a"), sources["a"]) is None

    def test_a_clock_that_ran_ahead_puts_nothing_off(self) -> None:
        assert self.names(kept("a"), after=-CLOCK_SLACK_S) == []
        assert self.names(kept("a"), after=-CLOCK_SLACK_S - 1) == ["parquet-a"]

    def test_only_findings_that_stand_and_the_longest_waiting_first(self) -> None:
        sources = {path: source(path=path) for path in ("a", "b")}
        shelf = (
            kept("b", path="b", at=9),
            kept("a", at=5),
            kept("old", at=1),
            kept("c", path="c"),
            kept("r", released={"told": True}),
            kept("s", kind="shards"),
        )
        assert self.names(*shelf, after=2 * DAY_S, sources=sources) == ["parquet-a", "parquet-b"]


@pytest.mark.parametrize(
    ("thing", "now", "word"),
    [
        (kept("a"), source(), None),
        (kept("a", 0), source(), None),
        (kept("a"), None, "no source"),
        (kept("a"), source("proven"), "it is proven"),
        (kept("a"), source(sha256="6" * 64), "another file by now"),
        (kept("a", kind="checkpoint"), source(), "never released"),
        (kept("a", kind="shards"), source(), "built again"),
        (kept("a", kind="record"), source(), "never put back"),
        (kept("a", kind="other"), source(), "did not put it there"),
    ],
)
def test_what_may_be_released(thing: QuarantineEntry, now: Source | None, word: str | None) -> None:
    found = refusal(thing, now)
    assert found is None if word is None else word in str(found)


class TestShelf:
    def test_it_reads_every_kind_newest_first(self, tmp_path: Path) -> None:
        for number, name in enumerate(("parquet-a-1", "shards-b-2", "checkpoint-step-3")):
            folder = tmp_path / name
            (folder / "set").mkdir(parents=True)
            (folder / "set" / "file").write_bytes(bytes(100 + number))
            body = {"v": 1, "path": name, "reason": "x", "time": f"2026-11-20T12:00:0{number}Z"}
            write_record(folder / "reason.json", body)
        (tmp_path / "stray").write_bytes(b"a file")
        (tmp_path / "my own folder").mkdir()
        (tmp_path / "bad.json").write_bytes(b"{}")
        set_aside(tmp_path / "bad.json", tmp_path, "damaged", "does not sum")
        found = read_quarantine(tmp_path)
        assert [(one.kind, one.bytes) for one in found] == [
            ("record", 2),
            ("checkpoint", 102),
            ("shards", 101),
            ("parquet", 100),
            ("other", 0),
        ]

    def test_a_damaged_reason_is_shown_as_such_and_can_be_marked(self, tmp_path: Path) -> None:
        folder = tmp_path / "parquet-a-1"
        folder.mkdir()
        (folder / "a.parquet").write_bytes(b"bad")
        (one,) = read_quarantine(tmp_path)
        assert (one.kind, one.bytes, one.reason) == ("parquet", 3, "no reason.json")
        (folder / "reason.json").write_bytes(b"not json")
        (one,) = read_quarantine(tmp_path)
        assert "damaged" in one.reason
        mark(folder, dropped={"time": "t", "why": "x", "bytes": 3})
        assert read_record(folder / "reason.json")["dropped"]["bytes"] == 3

    def test_a_mark_is_taken_away_with_none(self, tmp_path: Path) -> None:
        write_record(tmp_path / "reason.json", {"v": 1, "dropping": {"why": "x"}})
        mark(tmp_path, dropping=None, revalidations=2)
        assert read_record(tmp_path / "reason.json") == {"v": 1, "revalidations": 2}

    def test_a_link_out_of_it_is_not_followed(self, tmp_path: Path) -> None:
        folder = tmp_path / "q" / "parquet-a-1"
        folder.mkdir(parents=True)
        (folder / "thing").symlink_to("/proc")
        (one,) = read_quarantine(tmp_path / "q")
        assert one.bytes < 100
