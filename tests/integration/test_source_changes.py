"""Content that changes under one name, and one content under several, through the real daemons."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stoker.cli.main import exit_code
from stoker.config.load import load_pipeline
from stoker.corpus.records.sources import PUBLISHED, Source, write_source
from stoker.shards.audit.audit import audit_sets
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline

FILE, OTHER = "000.parquet", "001.parquet"


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


def again(data: DataPipeline) -> None:
    """The stage-shard loop alone: no file has changed."""
    ended = data.once("stage_shard")
    assert ended.returncode == 0, ended.stderr


def with_dataset(data: DataPipeline, **changes: object) -> DataPipeline:
    """The same pipeline file with other words about the dataset."""
    body = yaml.safe_load(data.file.read_text())
    body["dataset"] |= changes
    data.file.write_text(yaml.safe_dump(body))
    return DataPipeline(data.home, data.file, load_pipeline(data.file))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Two small files, built."""
    data = make_pipeline(tmp_path_factory.mktemp("made"))
    for number, name in enumerate((FILE, OTHER)):
        write_fineweb(data.source / name, 120, seed=number)
    data.drain()
    return Template(data.home)


@pytest.fixture
def data(made: Template, tmp_path: Path) -> DataPipeline:
    """The two small files in a folder of the test's own."""
    return made.copy_with_source(tmp_path)


def formers(data: DataPipeline) -> list[Source]:
    return [source for source in data.sources().values() if source.former is not None]


def changes_told(data: DataPipeline) -> list[tuple[str, str]]:
    events = data.events("stage_shard", "source_changed_after_build")
    return [(event["path"], event["former"]) for event in events]


def test_changed_content_is_a_new_source_beside_the_old_set_and_nothing_is_counted_twice(
    data: DataPipeline,
) -> None:
    before, sets, first = data.sources()[FILE], data.sets(), (data.source / FILE).read_bytes()

    write_fineweb(data.source / FILE, 150, seed=7)
    data.drain()
    after = data.sources()
    name = f"{FILE}@{before.sha256[:12]}"
    assert after[name] == replace(before, path=name, former=FILE, on_warm=after[name].on_warm)
    assert after[FILE].state in PUBLISHED
    assert after[FILE].formers == ((before.sha256, before.size),)
    assert data.sets().items() >= sets.items(), "the old set is as it was"
    assert len(data.sets()) == 3
    assert changes_told(data) == [(FILE, name)]
    assert data.pin().listing == (FILE, name, OTHER)
    assert data.pin().complete
    assert audited_rows(data) == 120 + 120 + 150

    (data.source / FILE).write_bytes(first)
    data.drain()
    assert data.states()[FILE] == "duplicate", "of what it was before"
    assert {one.path for one in formers(data)} == {name, after[FILE].former_path}
    assert audited_rows(data) == 120 + 120 + 150

    flip_page(write_fineweb(data.source / FILE, 200, seed=8, row_group=50), row_group=2)
    data.drain()
    assert data.states()[FILE] == "quarantined", "the new content alone"
    assert audited_rows(data) == 120 + 120 + 150
    assert len(data.sets()) == 3


def test_a_change_cut_off_between_its_records_is_taken_back_or_finished(data: DataPipeline) -> None:
    layout, before = data.pipeline.layout, data.sources()[FILE]
    name = before.former_path
    write_source(layout, replace(before, path=name, former=FILE))
    assert audited_rows(data) == 240

    again(data)  # the file is as it was: nothing has changed after all
    assert data.sources()[name].state == "duplicate"
    assert data.sources()[FILE] == before
    assert audited_rows(data) == 240

    write_source(layout, replace(before, path=name, former=FILE))
    write_fineweb(data.source / FILE, 150, seed=7)
    data.drain()
    assert data.sources()[name].state in PUBLISHED
    assert len(data.sets()) == 3
    assert audited_rows(data) == 240 + 150


def test_a_change_right_after_a_set_was_published_leaves_no_set_without_a_record(data: DataPipeline) -> None:
    before = data.sources()[FILE]
    # Killed between the rename that published the set and the record that says so.
    write_source(data.pipeline.layout, replace(before, state="building", books=None))
    write_fineweb(data.source / FILE, 150, seed=7)
    data.drain()
    (former,) = formers(data)
    assert (former.key, former.state in PUBLISHED) == (before.key, True)
    assert len(data.sets()) == 3
    assert audited_rows(data) == 240 + 150


def test_a_former_contents_lost_record_is_made_anew_and_a_lost_set_is_given_up(data: DataPipeline) -> None:
    write_fineweb(data.source / FILE, 150, seed=7)
    data.drain()
    (former,) = formers(data)
    data.pipeline.layout.source("prose", former.path).write_bytes(b"{}")
    again(data)
    assert formers(data) == [replace(former, engine=None)], "proven, not built: nobody knows how"
    assert audited_rows(data) == 240 + 150

    shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", str(former.key)))
    again(data)
    (lost,) = formers(data)
    assert (lost.state, lost.reason) == ("quarantined", "content_gone")
    assert [event["path"] for event in data.events("stage_shard", "content_gone")] == [former.path]
    assert data.pin().complete, "nobody waits for it"
    assert audited_rows(data) == 120 + 150

    write_fineweb(data.source / "back.parquet", 120, seed=0)  # the content it had
    data.drain()
    assert data.sources()["back.parquet"].sha256 == former.sha256
    assert data.states()["back.parquet"] in PUBLISHED
    assert audited_rows(data) == 240 + 150

    anew = with_dataset(data, version=2)
    again(anew)
    assert formers(anew) == [], "a new version is built of what the files hold now"
    assert anew.sources()[FILE].formers == ()
    assert audited_rows(anew) == 240 + 150


def test_one_content_under_several_names_is_judged_under_each_but_built_once(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    write_fineweb(data.source / FILE, 120, seed=0)
    shutil.copy(data.source / FILE, data.source / "twin.parquet")
    flip_page(write_fineweb(data.source / "bad.parquet", 200, seed=7, row_group=50), row_group=2)
    shutil.copy(data.source / "bad.parquet", data.source / "bad-twin.parquet")
    data.drain()
    states = data.states()
    assert (states["bad.parquet"], states["bad-twin.parquet"]) == ("quarantined", "quarantined")
    assert {reason["row_group"] for reason in data.reasons().values()} == {2}
    assert [states[FILE], states["twin.parquet"]].count("duplicate") == 1
    assert len(data.sets()) == 1
    assert audited_rows(data) == 120

    (data.source / "bad.parquet").write_bytes((data.source / FILE).read_bytes())
    data.drain()
    assert data.states()["bad.parquet"] == "duplicate"
    assert data.states()["bad-twin.parquet"] == "quarantined"
    assert audited_rows(data) == 120


def test_equal_names_in_two_datasets_do_not_meet(data: DataPipeline) -> None:
    sets = data.sets()
    other = with_dataset(data, name="verse")
    write_fineweb(data.source / FILE, 90, seed=9)
    other.drain()
    assert data.sets() == sets, "the other dataset's are untouched"
    assert set(other.states()) == {FILE, OTHER}
    assert formers(other) == []
    assert audited_rows(other) == 90 + 120
    assert set(data.states()) == {FILE, OTHER}


def test_rot_in_a_built_file_is_no_edit_and_nothing_is_made_of_it(
    data: DataPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt, sources, sets = data.receipts()[FILE], data.sources(), data.sets()
    rot(data.source / FILE)

    assert verify(data, "--dispute") == 1
    for _ in range(2):  # told once, restart or not
        ended = data.once("download_watchdog")
        assert (ended.returncode, f"1 rotten: {FILE}" in ended.stderr) == (1, True), ended.stderr
    (event,) = data.events("download_watchdog", "source_rotten")
    rotten = data.receipts()[FILE]
    assert (rotten.state, rotten.sha256, rotten.found) == ("disputed", receipt.sha256, event["sha256"])
    assert data.status("download_watchdog")["files"]["rotten"] == 1
    again(data)
    assert (data.sources(), data.sets()) == (sources, sets)
    assert data.pin().complete, "nobody waits for it"
    (finding,) = audit_sets(data.pipeline).findings
    assert finding.startswith(f"{data.source / FILE}: rotten: its sha256 is {rotten.found[:16]}")

    assert verify(data, "--accept", OTHER) == 64, "only what was found rotten is accepted"
    assert verify(data, "--accept", FILE) == 0
    assert data.once("download_watchdog").returncode == 0
    data.build()
    assert data.receipts()[FILE] == replace(rotten, state="verified", sha256=rotten.found, found="")
    assert [one.sha256 for one in formers(data)] == [receipt.sha256]
    assert audited_rows(data) >= 240, "what was accepted is judged like any other content"
    capsys.readouterr()
    assert exit_code(["audit", str(data.file)]) == 0
    assert f"changed      1 file after its set was built: {FILE}" in capsys.readouterr().out


def test_what_rots_before_it_is_built_is_set_aside_until_a_good_copy_comes(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    for number, name in enumerate((FILE, OTHER)):
        write_fineweb(data.source / name, 120, seed=number)
    good = (data.source / FILE).read_bytes()
    data.receive()
    rot(data.source / FILE)
    ended = data.once("stage_shard")  # finds it while staging, and disputes it
    assert (ended.returncode, f" not finished: {FILE}" in ended.stderr) == (0, True), ended.stderr
    assert data.once("download_watchdog").returncode == 1
    again(data)
    source = data.sources()[FILE]
    assert (source.state, source.reason) == ("quarantined", "source_rotten")
    assert (data.states()[OTHER], data.pin().complete) == ("released", True), "the others go on"

    (data.source / FILE).write_bytes(good)
    data.drain()
    assert set(data.states().values()) <= PUBLISHED
    assert audited_rows(data) == 240
