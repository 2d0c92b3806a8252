"""Quarantine with real daemons: looked at again, released, kept within its budget, asked by command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.quarantine.directory import mark, read_quarantine
from stoker.corpus.records.receipts import write_receipt
from stoker.corpus.records.sources import write_source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.lock import read_holder
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import set_aside, write_record
from support.asked import filed_requests
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.waiting import wait_until

LONG_AGO = "2026-01-01T00:00:00Z"


class Told(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


def told(*words: str) -> Told:
    """Run a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code(words)
    return Told(code, out.getvalue(), err.getvalue())


class Site:
    """A drained pipeline: one good file, and `bad.parquet`, of which a page was flipped."""

    def __init__(self, data: DataPipeline) -> None:
        self.data = data
        self.layout = data.pipeline.layout

    def stoker(self, *words: str) -> Told:
        """`stoker quarantine WORDS[0] FILE WORDS[1:]`."""
        verb, *others = words
        return told("quarantine", verb, str(self.data.file), *others)

    def listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.stoker("list", "--json").out)
        return listed

    def audit(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(told("audit", str(self.data.file), "--json", "--deep").out)
        return report

    def metrics(self) -> list[str]:
        """The lines of the running daemon's metrics."""
        holder = read_holder(self.layout.lock(STAGE_SHARD))
        assert holder is not None
        with urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics") as answer:
            return str(answer.read().decode()).splitlines()

    def folder(self) -> Path:
        """The finding against bad.parquet."""
        (one,) = [kept for kept in self.shelf() if kept.path == "bad.parquet" and kept.released is None]
        return self.layout.quarantine / one.name

    def shelf(self) -> tuple[Any, ...]:
        return read_quarantine(self.layout.quarantine)

    def acquit(self, content: bytes) -> None:
        """Let the records say that another content was convicted: this one, which is good."""
        sha256, size = hashlib.sha256(content).hexdigest(), len(content)
        write_receipt(self.layout, replace(self.data.receipts()["bad.parquet"], sha256=sha256, size=size))
        write_source(self.layout, replace(self.data.sources()["bad.parquet"], sha256=sha256, size=size))
        folder = self.folder()
        mark(folder, sha256=sha256)
        for thing in folder.iterdir():
            if thing.name != "reason.json":
                thing.unlink()
                thing.write_bytes(content)

    def released(self) -> list[dict[str, Any]]:
        return self.data.events("stage_shard", "source_released_from_quarantine")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    data = make_pipeline(home)
    write_fineweb(data.source / "good.parquet", 150, seed=1)
    flip_page(write_fineweb(data.source / "bad.parquet", 150, seed=2, row_group=50), row_group=1)
    data.drain()
    return home


@pytest.fixture
def site(made: Path, tmp_path: Path) -> Site:
    for part in ("state", "hot", "source"):
        shutil.copytree(made / part, tmp_path / part)
    data = make_pipeline(tmp_path)
    # The receipts speak of the copied files now.
    for path, receipt in data.receipts().items():
        write_receipt(data.pipeline.layout, replace(receipt, file=str(data.source / path)))
    return Site(data)


def good_content(tmp_path: Path) -> bytes:
    return write_fineweb(tmp_path / "other" / "bad.parquet", 150, seed=2, row_group=50).read_bytes()


def test_the_evidence_is_no_second_name_of_the_users_own_file(made: Path) -> None:
    (kept,) = made.glob("state/**/quarantine/parquet-*/*.parquet")
    assert kept.read_bytes() == (made / "source" / "bad.parquet").read_bytes()
    assert not kept.samefile(made / "source" / "bad.parquet")


def test_what_is_still_bad_is_refused_with_the_readers_words(site: Site) -> None:
    (kept,) = site.listed()
    assert (kept["path"], kept["reason"], kept["row_group"], kept["column"]) == (
        "bad.parquet",
        "page_corrupt",
        1,
        "text",
    )
    assert kept["bytes"] == (site.data.source / "bad.parquet").stat().st_size
    shown = site.stoker("show", "bad.parquet").out
    assert str(site.folder() / parquet_name(site.data.sources()["bad.parquet"])) in shown
    assert kept["detail"] in shown

    at_once = site.stoker("release", "bad.parquet")  # nobody is there
    assert (at_once.code, "page_corrupt in row group 1, column text: " in at_once.err) == (1, True)
    every = site.stoker("revalidate")
    assert (every.code, "page_corrupt in row group 1, column text: " in every.err) == (1, True)
    daemon = site.data.start("stage_shard")
    try:
        refused = site.stoker("release", kept["name"])
        assert refused.code == 1
        assert "page_corrupt in row group 1, column text: " + kept["detail"] in refused.err
        assert site.data.states()["bad.parquet"] == "quarantined"
        assert site.listed()[0]["revalidations"] == 1
        assert site.stoker("release", "parquet-*").code == 64
        assert site.stoker("revalidate").code == 1
        assert site.listed()[0]["revalidations"] == 2
        forced = site.stoker("release", "bad.parquet", "--force")
        assert forced.code == 0, forced.err
        wait_until(lambda: site.data.states()["bad.parquet"] == "quarantined", what="the same end")
        wait_until(lambda: len(site.shelf()) == 2, what="a finding of its own")
    finally:
        assert daemon.stop() == 0
    assert site.audit()["balanced"]


def test_a_flaw_of_the_whole_file_is_listed_before_and_after_it_was_looked_at_again(tmp_path: Path) -> None:
    site = Site(make_pipeline(tmp_path))
    write_fineweb(site.data.source / "good.parquet", 60, seed=1)
    (site.data.source / "bad.parquet").write_text("no parquet")
    site.data.drain()
    before = site.stoker("list").out
    assert "bad.parquet: not_parquet\n" in before
    mark(site.folder(), time=LONG_AGO)
    site.data.once("stage_shard")
    after = site.stoker("list")
    assert after.code == 0, after.err
    assert "bad.parquet: not_parquet\n" in after.out
    reason = json.loads((site.folder() / "reason.json").read_text())
    assert (reason["row_group"], reason["column"]) == (None, None), "formats.md promises both"
    (site.folder() / "reason.json").write_text("not json")
    assert "damaged" in site.stoker("list").out


def test_a_good_one_is_released_by_the_clock_and_built_and_the_books_balance(
    site: Site, tmp_path: Path
) -> None:
    content = good_content(tmp_path)
    (site.data.source / "bad.parquet").write_bytes(content)
    site.acquit(content)
    mark(site.folder(), time=LONG_AGO)

    ended = site.data.once("stage_shard")

    assert ended.returncode == 0, ended.stderr
    assert set(site.data.states().values()) == {"released"}
    (told,) = site.released()
    assert (told["path"], told["why"]) == ("bad.parquet", "it decodes and hashes well now")
    (dropped,) = site.data.events("stage_shard", "quarantine_dropped")
    assert (dropped["path"], dropped["bytes"]) == ("bad.parquet", len(content))
    assert "its source was released" in dropped["why"]
    assert [kept.things for kept in site.shelf()] == [()]
    assert site.listed() == [] and "0 in quarantine" in site.stoker("list").out, "its source is built"
    assert site.stoker("show", "bad.parquet").code == 0
    report = site.audit()
    assert report["balanced"], report["findings"]
    assert report["sources"] == {"total": 2, "proven": 2, "quarantined": 0, "duplicate": 0}
    again = site.data.once("stage_shard")
    assert again.returncode == 0
    assert len(site.released()) == 1


def test_everything_is_looked_at_when_asked_and_a_vanished_file_comes_back_from_quarantine(
    site: Site, tmp_path: Path
) -> None:
    content = good_content(tmp_path)
    (site.data.source / "bad.parquet").unlink()
    site.acquit(content)
    daemon = site.data.start("stage_shard")
    try:
        done = site.stoker("revalidate")
        assert (done.code, done.out) == (0, "bad.parquet: released: it decodes and hashes well now\n")
        wait_until(lambda: site.data.states()["bad.parquet"] == "released", what="the set")
        wait_until(lambda: site.data.events("stage_shard", "quarantine_dropped"), what="its copy's end")
    finally:
        assert daemon.stop() == 0
    assert site.audit()["balanced"]


def test_a_file_that_differs_from_its_receipt_is_hashed_and_built_again(site: Site, tmp_path: Path) -> None:
    shutil.rmtree(site.folder())  # nobody knows any more what was found
    source = site.data.source / "bad.parquet"
    found = source.stat()
    source.write_bytes(good_content(tmp_path))
    os.utime(source, ns=(found.st_atime_ns, found.st_mtime_ns))  # as a disk mends or breaks by itself
    receipt = site.layout.receipt("prose", "bad.parquet")
    watchdog = site.data.start("download_watchdog")
    daemon = site.data.start("stage_shard")
    try:
        wait_until(lambda: site.data.states()["bad.parquet"] == "released", what="the new content's set")
    finally:
        codes = [daemon.stop(), watchdog.stop()]
    assert codes == [0, 0]
    assert receipt.exists()
    assert site.audit()["balanced"]


def test_a_drop_is_done_by_the_daemon_that_runs_or_is_started_and_told_once(site: Site) -> None:
    body = {"v": 1, "kind": "checkpoint", "path": "step-5", "reason": "x", "time": LONG_AGO}
    place = site.layout.quarantine / "checkpoint-step-5-x"
    (place / "step-5").mkdir(parents=True)
    write_record(place / "reason.json", body)
    broken = site.layout.quarantine.parent / "broken.json"
    broken.write_bytes(b"{}")
    set_aside(broken, site.layout.quarantine, "damaged", "does not sum")
    assert sorted(each["kind"] for each in site.listed()) == ["checkpoint", "parquet", "record"]
    unasked = site.stoker("drop", "record-*")
    assert unasked.code == 64
    assert "say --yes" in unasked.err
    assert site.stoker("drop", "nothing-of-the-kind").code == 64

    assert site.stoker("drop", "record-*", place.name, "--yes").code == 0

    never = site.stoker("release", place.name)
    assert (never.code, "is never released" in never.err) == (65, True), never.err
    filed = filed_requests(site.layout, TRAIN_SUPERVISOR)
    assert [one.args for one in filed] == [{"name": place.name, "reason_too": False}]
    daemon = site.data.start("stage_shard")
    try:
        never = site.stoker("release", place.name)
        assert never.code == 65
        assert "a checkpoint that was proven wrong is never released" in never.err
        wait_until(lambda: site.data.events("stage_shard", "quarantine_dropped"), what="the word of it")
        size = (site.data.source / "bad.parquet").stat().st_size
        wanted = [
            'stoker_quarantine_files{kind="parquet"} 1.0',
            'stoker_quarantine_files{kind="record"} 0.0',
            f'stoker_quarantine_bytes{{kind="parquet"}} {float(size)}',
            'stoker_quarantine_dropped_total{kind="record"} 1.0',
        ]
        wait_until(lambda: set(wanted) <= set(site.metrics()), what="the metrics")
        done = site.stoker("drop", "bad.parquet", "--reason-too", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)[0]["bytes"] == size
        shutil.rmtree(site.layout.quarantine)  # somebody tidies up
        wait_until(
            lambda: site.shelf() and site.data.states()["bad.parquet"] == "quarantined",
            what="another finding",
        )
        assert site.stoker("revalidate").code == 1
    finally:
        assert daemon.stop() == 0
    told = site.data.events("stage_shard", "quarantine_dropped")
    assert [each["kind"] for each in told] == ["record", "parquet"]
    assert all(each["why"].startswith("asked for by uid ") for each in told)
    (finding,) = site.shelf()
    assert (finding.path, finding.bytes, finding.body["revalidations"]) == ("bad.parquet", size, 1)
    assert site.audit()["balanced"]
