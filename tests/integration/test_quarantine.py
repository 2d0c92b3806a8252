"""Quarantine with real daemons: looked at again, released, kept within its budget, asked by command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.quarantine.directory import mark, read_quarantine
from stoker.corpus.records.receipts import write_receipt
from stoker.corpus.records.sources import write_source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import set_aside, write_record
from support.asked import filed_requests
from support.audits import audit_of
from support.once import made_once
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.waiting import wait_until

LONG_AGO = "2026-01-01T00:00:00Z"
BAD = {"bad.parquet": 2, "lost.parquet": 3, "mended.parquet": 4}  # and their seeds


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
    """A drained pipeline: one good file, three of which a page was flipped, and one of words."""

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

    def folder(self, path: str = "bad.parquet") -> Path:
        """The finding against that file."""
        (one,) = [kept for kept in self.shelf() if kept.path == path and kept.released is None]
        return self.layout.quarantine / one.name

    def shelf(self) -> tuple[Any, ...]:
        return read_quarantine(self.layout.quarantine)

    def acquit(self, path: str) -> bytes:
        """Let the records say that another content was convicted: this one, which is good."""
        content = write_fineweb(
            self.data.home / "other" / path, 60, seed=BAD[path], row_group=20
        ).read_bytes()
        sha256, size = hashlib.sha256(content).hexdigest(), len(content)
        write_receipt(self.layout, replace(self.data.receipts()[path], sha256=sha256, size=size))
        write_source(self.layout, replace(self.data.sources()[path], sha256=sha256, size=size))
        folder = self.folder(path)
        mark(folder, sha256=sha256)
        for thing in folder.iterdir():
            if thing.name != "reason.json":
                thing.unlink()
                thing.write_bytes(content)
        return content

    def looks(self) -> int:
        """How often bad.parquet was looked at again."""
        (kept,) = [each for each in self.listed() if each["path"] == "bad.parquet"]
        return int(kept["revalidations"])

    def released(self) -> list[dict[str, Any]]:
        return self.data.events("stage_shard", "source_released_from_quarantine")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def drain(home: Path) -> None:
        data = make_pipeline(home)
        write_fineweb(data.source / "good.parquet", 60, seed=1)
        for name, seed in BAD.items():
            flip_page(write_fineweb(data.source / name, 60, seed=seed, row_group=20), row_group=1)
        (data.source / "words.parquet").write_text("no parquet")
        data.drain()

    return made_once(tmp_path_factory, "quarantined", drain)


@pytest.fixture
def site(made: Path, tmp_path: Path) -> Site:
    for part in ("state", "hot", "source"):
        shutil.copytree(made / part, tmp_path / part)
    data = make_pipeline(tmp_path)
    # The receipts speak of the copied files now.
    for path, receipt in data.receipts().items():
        write_receipt(data.pipeline.layout, replace(receipt, file=str(data.source / path)))
    return Site(data)


def test_a_good_one_is_released_by_the_clock_and_built_and_the_books_balance(site: Site) -> None:
    """A flaw of the whole file is listed before and after it was looked at again."""
    content = site.acquit("mended.parquet")
    (site.data.source / "mended.parquet").write_bytes(content)
    for path in ("mended.parquet", "words.parquet"):
        mark(site.folder(path), time=LONG_AGO)
    assert "words.parquet: not_parquet\n" in site.stoker("list").out

    ended = site.data.once("stage_shard")

    assert ended.returncode == 0, ended.stderr
    assert {path for path, state in site.data.states().items() if state == "released"} == {
        "good.parquet",
        "mended.parquet",
    }
    (told,) = site.released()
    assert (told["path"], told["why"]) == ("mended.parquet", "it decodes and hashes well now")
    (dropped,) = site.data.events("stage_shard", "quarantine_dropped")
    assert (dropped["path"], dropped["bytes"]) == ("mended.parquet", len(content))
    assert "its source was released" in dropped["why"]
    assert [kept.things for kept in site.shelf() if kept.path == "mended.parquet"] == [()]
    assert site.stoker("show", "mended.parquet").code == 0
    report = audit_of(site.data.file, deep=True)
    assert report["balanced"], report["findings"]
    assert report["sources"] == {"total": 5, "proven": 2, "quarantined": 3, "duplicate": 0}
    after = site.stoker("list")
    assert (after.code, "words.parquet: not_parquet\n" in after.out) == (0, True), after.err
    assert "mended.parquet" not in after.out and "3 in quarantine" in after.out, "its source is built"
    reason = json.loads((site.folder("words.parquet") / "reason.json").read_text())
    assert (reason["row_group"], reason["column"]) == (None, None), "formats.md promises both"
    (site.folder("words.parquet") / "reason.json").write_text("not json")
    assert "damaged" in site.stoker("list").out


def test_what_is_still_bad_is_refused_with_the_readers_words(made: Path, site: Site) -> None:
    (evidence,) = made.glob("state/**/quarantine/parquet-*bad*/*.parquet")
    assert evidence.read_bytes() == (made / "source" / "bad.parquet").read_bytes()
    assert not evidence.samefile(made / "source" / "bad.parquet"), "no second name of the user's own file"
    (kept,) = [each for each in site.listed() if each["path"] == "bad.parquet"]
    assert (kept["reason"], kept["row_group"], kept["column"]) == ("page_corrupt", 1, "text")
    assert kept["bytes"] == (site.data.source / "bad.parquet").stat().st_size
    shown = site.stoker("show", "bad.parquet").out
    assert str(site.folder() / parquet_name(site.data.sources()["bad.parquet"])) in shown
    assert kept["detail"] in shown
    words = "page_corrupt in row group 1, column text: "
    for at_once in (site.stoker("release", "bad.parquet"), site.stoker("revalidate")):  # nobody is there
        assert (at_once.code, words in at_once.err) == (1, True)

    (site.data.source / "lost.parquet").unlink()
    site.acquit("lost.parquet")
    daemon = site.data.start("stage_shard")
    try:
        refused = site.stoker("release", kept["name"])
        assert (refused.code, words + kept["detail"] in refused.err) == (1, True)
        assert site.data.states()["bad.parquet"] == "quarantined"
        assert site.looks() == 1
        assert site.stoker("release", "parquet-*").code == 64
        every = site.stoker("revalidate")  # of which one has vanished, and comes back from quarantine
        assert (every.code, site.looks()) == (1, 2)
        assert "lost.parquet: released: it decodes and hashes well now\n" in every.out
        wait_until(lambda: site.data.states()["lost.parquet"] == "released", what="the set")
        wait_until(lambda: site.data.events("stage_shard", "quarantine_dropped"), what="its copy's end")
        before = len(site.shelf())
        forced = site.stoker("release", "bad.parquet", "--force")
        assert forced.code == 0, forced.err
        wait_until(lambda: site.data.states()["bad.parquet"] == "quarantined", what="the same end")
        wait_until(lambda: len(site.shelf()) == before + 1, what="a finding of its own")
    finally:
        assert daemon.stop() == 0
    assert audit_of(site.data.file, deep=True)["balanced"]


def test_a_drop_is_done_by_the_daemon_that_runs_or_is_started_and_told_once(site: Site) -> None:
    body = {"v": 1, "kind": "checkpoint", "path": "step-5", "reason": "x", "time": LONG_AGO}
    place = site.layout.quarantine / "checkpoint-step-5-x"
    (place / "step-5").mkdir(parents=True)
    write_record(place / "reason.json", body)
    broken = site.layout.quarantine.parent / "broken.json"
    broken.write_bytes(b"{}")
    set_aside(broken, site.layout.quarantine, "damaged", "does not sum")
    assert sorted(each["kind"] for each in site.listed()) == ["checkpoint", *["parquet"] * 4, "record"]
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
        sizes = {path: (site.data.source / path).stat().st_size for path in (*BAD, "words.parquet")}
        wanted = {
            ("stoker_quarantine_files", "parquet"): 4,
            ("stoker_quarantine_files", "record"): 0,
            ("stoker_quarantine_bytes", "parquet"): sum(sizes.values()),
            ("stoker_quarantine_dropped_total", "record"): 1,
        }
        wait_until(lambda: wanted.items() <= site.data.metrics(STAGE_SHARD).items(), what="the metrics")
        done = site.stoker("drop", "bad.parquet", "--reason-too", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)[0]["bytes"] == sizes["bad.parquet"]
        shutil.rmtree(site.layout.quarantine)  # somebody tidies up
        wait_until(lambda: len(site.shelf()) == 4, what="other findings")
        assert site.stoker("revalidate").code == 1
    finally:
        assert daemon.stop() == 0
    told = site.data.events("stage_shard", "quarantine_dropped")
    assert [each["kind"] for each in told] == ["record", "parquet"]
    assert all(each["why"].startswith("asked for by uid ") for each in told)
    assert {finding.path: finding.bytes for finding in site.shelf()} == sizes
    assert site.looks() == 1
    assert site.data.states()["bad.parquet"] == "quarantined"
    assert audit_of(site.data.file, deep=True)["balanced"]
