"""Content that changes under one name, and one content under several, through the real daemons."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stoker.cli.main import exit_code
from stoker.config.load import load_pipeline
from stoker.corpus.records.receipts import read_listing
from stoker.corpus.records.sources import PUBLISHED, Source, write_source
from stoker.shards.audit.audit import audit_sets
from stoker.store.layout import DOWNLOAD_WATCHDOG
from support.asked import filed_requests
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, Template
from support.waiting import wait_until

FILE, OTHER = "000.parquet", "001.parquet"
BUILT = 3 * 150 + 100 + 80 + 60  # rows


def audited_rows(data: DataPipeline) -> int:
    """The rows that the audit counts; it must find nothing."""
    audit = audit_sets(data.pipeline)
    assert audit.findings == ()
    return audit.rows


def rot(file: Path) -> None:
    """Flip bits in a page of a file without a trace in its size, its time or its inode."""
    about = file.stat()
    flip_page(file, row_group=0)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def verify(data: DataPipeline, *options: str) -> int:
    return exit_code(["verify", "downloads", str(data.file), *options])


def with_dataset(data: DataPipeline, **changes: object) -> DataPipeline:
    """The same pipeline file with other words about the dataset."""
    body = yaml.safe_load(data.file.read_text())
    body["dataset"] |= changes
    data.file.write_text(yaml.safe_dump(body))
    return DataPipeline(data.home, data.file, load_pipeline(data.file))


@pytest.fixture
def data(drained: Template, tmp_path: Path) -> DataPipeline:
    """Three small files in a folder of the test's own."""
    return drained.copy_with_source(tmp_path)


@contextmanager
def at_work(data: DataPipeline) -> Iterator[Callable[..., None]]:
    """The stage-shard loop; what it yields waits until it has built what is in the folder to these states."""
    daemon = data.start("stage_shard")

    def until(rows: int, **states: str) -> None:
        data.receive()
        wanted = {f"{name}.parquet": state for name, state in states.items()}

        def is_settled() -> bool:
            sources, receipts = data.sources(), data.receipts()
            return (
                all(path in sources and sources[path].sha256 == receipts[path].sha256 for path in receipts)
                and wanted.items() <= data.states().items()
                and data.pin().complete
                and audit_sets(data.pipeline).findings == ()
            )

        wait_until(is_settled, what=f"{wanted} and true books")
        assert audited_rows(data) == rows

    try:
        yield until
    finally:
        assert daemon.stop() == 0


def formers(data: DataPipeline) -> list[Source]:
    return [source for source in data.sources().values() if source.former is not None]


def page_flipped(file: Path) -> None:
    flip_page(write_fineweb(file, 200, seed=8, row_group=50), row_group=2)


def test_changed_content_is_a_new_source_beside_the_old_set_and_nothing_is_counted_twice(
    data: DataPipeline,
) -> None:
    """Nor is one content under several names: it is judged under each, and built once."""
    before, sets, first = data.sources()[FILE], data.sets(), (data.source / FILE).read_bytes()
    with at_work(data) as until:
        write_fineweb(data.source / FILE, 100, seed=7)
        shutil.copy(data.source / OTHER, data.source / "twin.parquet")
        write_fineweb(data.source / "late.parquet", 80, seed=9)
        write_fineweb(data.source / "later.parquet", 60, seed=10)
        for name in ("bad", "bad-twin"):
            page_flipped(data.source / f"{name}.parquet")
        bad = {"bad": "quarantined", "bad-twin": "quarantined"}
        good = {"twin": "duplicate", "late": "released", "later": "released"}
        until(BUILT, **{"000": "released"}, **good, **bad)
        assert {reason["row_group"] for reason in data.reasons().values()} == {2}
        after = data.sources()
        name = f"{FILE}@{before.sha256[:12]}"
        assert after[name] == replace(before, path=name, former=FILE, on_warm=after[name].on_warm)
        assert after[FILE].formers == ((before.sha256, before.size),)
        assert data.sets().items() >= sets.items(), "the old set is as it was"
        assert len(data.sets()) == 6
        events = data.events("stage_shard", "source_changed_after_build")
        assert [(event["path"], event["former"]) for event in events] == [(FILE, name)]
        assert {FILE, name, OTHER} < {*data.pin().listing}

        (data.source / FILE).write_bytes(first)
        (data.source / "bad.parquet").write_bytes((data.source / OTHER).read_bytes())
        bad["bad"] = "duplicate"
        until(BUILT, **{"000": "duplicate"}, **bad)  # of what it was before
        assert {one.path for one in formers(data)} == {name, after[FILE].former_path}

        page_flipped(data.source / FILE)
        until(BUILT, **{"000": "quarantined"}, **bad)  # the new content alone
        assert len(data.sets()) == 6
    what_is_cut_off_or_lost_around_a_change_is_taken_back_or_made_good(data, name, after[FILE])


def what_is_cut_off_or_lost_around_a_change_is_taken_back_or_made_good(
    data: DataPipeline, name: str, second: Source
) -> None:
    """`name` is a former content of FILE, `second` another that it had."""
    layout, before = data.pipeline.layout, data.sources()
    same, late, killed, original = (before[f"{stem}.parquet"] for stem in ("002", "late", "later", "001"))
    # A change cut off between its records, of a file that is as it was and of one that has changed indeed.
    for cut_off in (same, late):
        write_source(layout, replace(cut_off, path=cut_off.former_path, former=cut_off.path))
    assert audited_rows(data) == BUILT
    write_fineweb(data.source / late.path, 70, seed=11)
    # Killed between the rename that published the set and the record that says so.
    write_source(layout, replace(killed, state="building", books=None))
    write_fineweb(data.source / killed.path, 50, seed=12)
    (data.source / original.path).unlink()  # of which there are duplicates
    layout.source("prose", name).write_bytes(b"{}")
    for lost in (original, second):
        shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", str(lost.key)))
    rows = BUILT - 100 + 70 + 50
    with at_work(data) as until:
        until(rows, late="released", later="released", **{"001": "duplicate"})
        now = data.sources()
        assert sorted(now[path].state for path in ("bad.parquet", "twin.parquet")) == [
            "duplicate",
            "released",
        ]
        assert (now[same.former_path].state, now[same.path]) == ("duplicate", same)
        assert now[late.former_path].state in PUBLISHED
        assert (now[killed.former_path].key, now[killed.former_path].state in PUBLISHED) == (killed.key, True)
        assert now[name] == replace(before[name], engine=None), "proven, not built: nobody knows how"
        lost = now[second.former_path]
        assert (lost.state, lost.reason) == ("quarantined", "content_gone")
        assert [event["path"] for event in data.events("stage_shard", "content_gone")] == [lost.path]

        write_fineweb(data.source / "back.parquet", 100, seed=7)  # the content it had
        until(rows + 100, back="released")
        assert data.sources()["back.parquet"].sha256 == lost.sha256


@pytest.mark.long  # test_shard_datasets proves that records, jobs and claims are a dataset's own
def test_equal_names_in_two_datasets_do_not_meet(data: DataPipeline) -> None:
    sets, states = data.sets(), data.states()
    other = with_dataset(data, name="verse")
    write_fineweb(data.source / FILE, 60, seed=9)
    other.drain()
    assert (other.states(), formers(other), audited_rows(other)) == (states, [], 60 + 2 * 150)
    assert (data.sets(), data.states()) == (sets, states), "the other dataset's are untouched"


def test_rot_in_a_built_file_is_no_edit_and_what_rots_before_it_is_built_waits_for_a_good_copy(
    data: DataPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, sets, new = data.sources(), data.sets(), data.source / "new.parquet"
    good = write_fineweb(new, 60, seed=9).read_bytes()
    data.receive()
    receipt = data.receipts()[FILE]
    for file in (new, data.source / FILE):
        rot(file)
    with at_work(data):
        # Found while staging.
        wait_until(lambda: filed_requests(data.pipeline.layout, DOWNLOAD_WATCHDOG), what="the dispute")
        assert verify(data, "--dispute") == 1
        ended = data.once("download_watchdog")
        assert (ended.returncode, f"2 rotten: {FILE}, new.parquet" in ended.stderr) == (1, True), ended.stderr
        rotten = data.receipts()[FILE]
        assert (rotten.state, rotten.sha256) == ("disputed", receipt.sha256)
        assert data.status("download_watchdog")["files"]["rotten"] == 2
        wait_until(lambda: data.states().get("new.parquet") == "quarantined", what="what was never built")
        wait_until(lambda: data.pin().complete, what="the end: nobody waits for them")
        now = data.sources()
        assert now.pop("new.parquet").reason == "source_rotten"
        assert (now, data.sets()) == (sources, sets)
        found = audit_sets(data.pipeline).findings
        assert any(
            one.startswith(f"{data.source / FILE}: rotten: its sha256 is {rotten.found[:16]}")
            for one in found
        )

        watchdog = data.start("download_watchdog")
        try:
            assert verify(data, "--accept", OTHER) == 64, "only what was found rotten is accepted"
            assert verify(data, "--accept", FILE) == 0
            new.write_bytes(good)
            wait_until(lambda: data.receipts()[FILE].found == "", what="the acceptance")
            wait_until(
                lambda: data.receipts()["new.parquet"].state == "verified", what="the good copy's receipt"
            )
            wait_until(lambda: read_listing(data.pipeline.layout, "prose").complete, what="the whole listing")
        finally:
            assert watchdog.stop() == 0
        told = [(one["path"], one["sha256"]) for one in data.events("download_watchdog", "source_rotten")]
        assert len(told) == 2 and (FILE, rotten.found) in told, "told once, restart or not"
        assert data.receipts()[FILE] == replace(rotten, state="verified", sha256=rotten.found, found="")
        wait_until(lambda: data.states()["new.parquet"] == "released", what="the good copy")
        wait_until(lambda: formers(data), what="the accepted content's turn")
        wait_until(lambda: data.pin().complete, what="the end")
    assert [one.sha256 for one in formers(data)] == [receipt.sha256]
    assert audited_rows(data) >= 3 * 150 + 60, "what was accepted is judged like any other content"
    capsys.readouterr()
    assert exit_code(["audit", str(data.file)]) == 0
    assert f"changed      1 file after its set was built: {FILE}" in capsys.readouterr().out
