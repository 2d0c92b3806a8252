"""Quarantine with real daemons: looked at again, released, kept within its budget, asked by command."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.quarantine.directory import mark, read_quarantine
from stoker.corpus.records.receipts import write_receipt
from stoker.corpus.records.sources import write_source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import set_aside, write_record
from support.asked import filed_requests
from support.audits import audit_of
from support.commands import Ended, stoker
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.waiting import wait_until

LONG_AGO = "2026-01-01T00:00:00Z"
CORRUPT = "page_corrupt in row group 1, column text: "
BAD = {"bad.parquet": 2, "lost.parquet": 3, "mended.parquet": 4}  # and their seeds


class Site:
    """A drained pipeline: one good file, three of which a page was flipped, and one of words."""

    def __init__(self, data: DataPipeline) -> None:
        self.data = data
        self.layout = data.pipeline.layout

    def stoker(self, *words: str) -> Ended:
        """`stoker quarantine WORDS[0] FILE WORDS[1:]`."""
        verb, *others = words
        return stoker("quarantine", verb, str(self.data.file), *others)

    def listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.stoker("list", "--json").stdout)
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

    def bad(self) -> dict[str, Any]:
        """What is listed of bad.parquet."""
        (kept,) = [each for each in self.listed() if each["path"] == "bad.parquet"]
        return kept

    def dropped(self, path: str) -> list[dict[str, Any]]:
        """The events about a copy's end."""
        events = self.data.events(STAGE_SHARD, "quarantine_dropped")
        return [event for event in events if event["path"] == path]


@pytest.fixture
def site(drained: Template, tmp_path: Path) -> Site:
    data = make_pipeline(tmp_path, tokenizer=drained.tokenizer)
    write_fineweb(data.source / "good.parquet", 60, seed=1)
    for name, seed in BAD.items():
        flip_page(write_fineweb(data.source / name, 60, seed=seed, row_group=20), row_group=1)
    (data.source / "words.parquet").write_text("no parquet")
    data.drain()
    return Site(data)


def test_what_was_quarantined_is_looked_at_again_released_or_dropped_and_books_balance(
    site: Site,
) -> None:
    what_is_bad_is_listed_and_refused_where_nobody_runs(site)
    (site.data.source / "lost.parquet").unlink()
    site.acquit("lost.parquet")
    (site.data.source / "mended.parquet").write_bytes(content := site.acquit("mended.parquet"))
    for path in ("mended.parquet", "words.parquet"):
        mark(site.folder(path), time=LONG_AGO)
    dropped = dropped_by_the_daemon_that_is_started(site)
    next(dropped)
    daemon = site.data.start(STAGE_SHARD)
    try:
        next(dropped)
        a_good_one_is_released_by_the_clock(site, len(content))
        all_are_looked_at_when_asked(site)
        report = audit_of(site.data.file, deep=True)
        assert report["balanced"], report["findings"]
        assert report["sources"] == {"total": 5, "proven": 3, "quarantined": 2, "duplicate": 0}
        next(dropped, None)
    finally:
        assert daemon.stop() == 0
    assert audit_of(site.data.file)["balanced"]
    every = site.stoker("revalidate")
    assert (every.returncode, CORRUPT in every.stderr) == (1, True)
    (site.folder("words.parquet") / "reason.json").write_text("not json")
    assert "damaged" in site.stoker("list").stdout


def what_is_bad_is_listed_and_refused_where_nobody_runs(site: Site) -> None:
    """With the reader's words."""
    kept, file = site.bad(), site.data.source / "bad.parquet"
    assert (kept["reason"], kept["row_group"], kept["column"]) == ("page_corrupt", 1, "text")
    assert kept["bytes"] == file.stat().st_size
    evidence = site.folder() / parquet_name(site.data.sources()["bad.parquet"])
    assert evidence.read_bytes() == file.read_bytes()
    assert not evidence.samefile(file), "no second name of the user's own file"
    shown = site.stoker("show", "bad.parquet").stdout
    assert str(evidence) in shown and kept["detail"] in shown
    assert "words.parquet: not_parquet\n" in site.stoker("list").stdout
    at_once = site.stoker("release", "bad.parquet")
    assert (at_once.returncode, CORRUPT in at_once.stderr) == (1, True)


def dropped_by_the_daemon_that_is_started(site: Site) -> Iterator[None]:
    """Asked before its start and while it runs, and told once."""
    body = {"v": 1, "kind": "checkpoint", "path": "step-5", "reason": "x", "time": LONG_AGO}
    place = site.layout.quarantine / "checkpoint-step-5-x"
    (place / "step-5").mkdir(parents=True)
    write_record(place / "reason.json", body)
    broken = site.layout.quarantine.parent / "broken.json"
    broken.write_bytes(b"{}")
    set_aside(broken, site.layout.quarantine, "damaged", "does not sum")
    assert sorted(each["kind"] for each in site.listed()) == ["checkpoint", *["parquet"] * 4, "record"]
    unasked = site.stoker("drop", "record-*")
    assert (unasked.returncode, "say --yes" in unasked.stderr) == (64, True)
    assert site.stoker("drop", "nothing-of-the-kind").returncode == 64
    assert site.stoker("drop", "record-*", place.name, "--yes").returncode == 0
    filed = filed_requests(site.layout, TRAIN_SUPERVISOR)
    assert [one.args for one in filed] == [{"name": place.name, "reason_too": False}]
    never = site.stoker("release", place.name)
    assert (never.returncode, "is never released" in never.stderr) == (65, True), never.stderr
    yield
    never = site.stoker("release", place.name)
    told = "a checkpoint that was proven wrong is never released"
    assert (never.returncode, told in never.stderr) == (65, True), never.stderr
    yield
    kept = site.bad()
    held = [each.bytes for each in site.shelf() if each.kind == "parquet" and each.things]
    wanted = {
        ("stoker_quarantine_files", "parquet"): len(held),
        ("stoker_quarantine_files", "record"): 0,
        ("stoker_quarantine_bytes", "parquet"): sum(held),
        ("stoker_quarantine_dropped_total", "record"): 1,
    }
    wait_until(lambda: wanted.items() <= site.data.metrics(STAGE_SHARD).items(), what="the metrics")
    done = site.stoker("drop", kept["name"], "--reason-too", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["bytes"]) == (0, kept["bytes"]), done.stderr
    site.layout.quarantine.rename(site.layout.quarantine.with_name("tidied"))  # by somebody, all at once
    found_again = {"bad.parquet", "words.parquet"}
    wait_until(lambda: {each.path for each in site.shelf()} == found_again, what="other findings")
    for path in found_again:
        wait_until(lambda: site.data.states()[path] == "quarantined", what=f"the end of {path}")  # noqa: B023
    told_of = [each for each in site.data.events(STAGE_SHARD, "quarantine_dropped") if "asked" in each["why"]]
    assert [each["kind"] for each in told_of] == ["record", "parquet"]
    assert all(each["why"].startswith("asked for by uid ") for each in told_of)


def a_good_one_is_released_by_the_clock(site: Site, size: int) -> None:
    """And built; a flaw of the whole file is listed as before it was looked at again."""
    wait_until(lambda: site.data.states()["mended.parquet"] == "released", what="the set")
    (told,) = site.data.events(STAGE_SHARD, "source_released_from_quarantine")
    assert (told["path"], told["why"]) == ("mended.parquet", "it decodes and hashes well now")
    wait_until(lambda: site.dropped("mended.parquet"), what="its copy's end")
    (dropped,) = site.dropped("mended.parquet")
    assert (dropped["bytes"], "its source was released" in dropped["why"]) == (size, True)
    assert [kept.things for kept in site.shelf() if kept.path == "mended.parquet"] == [()]
    assert site.stoker("show", "mended.parquet").returncode == 0
    listed = site.stoker("list")
    assert (listed.returncode, "words.parquet: not_parquet\n" in listed.stdout) == (0, True), listed.stderr
    assert "mended.parquet" not in listed.stdout, "its source is built"
    reason = json.loads((site.folder("words.parquet") / "reason.json").read_text())
    assert (reason["row_group"], reason["column"]) == (None, None), "formats.md promises both"


def all_are_looked_at_when_asked(site: Site) -> None:
    """What is still bad is refused; one that has vanished comes back from quarantine."""
    kept = site.bad()
    refused = site.stoker("release", kept["name"])
    assert (refused.returncode, CORRUPT + kept["detail"] in refused.stderr) == (1, True)
    assert site.data.states()["bad.parquet"] == "quarantined"
    assert site.bad()["revalidations"] == 1
    assert site.stoker("release", "parquet-*").returncode == 64
    every = site.stoker("revalidate")
    assert (every.returncode, site.bad()["revalidations"]) == (1, 2)
    assert "lost.parquet: released: it decodes and hashes well now\n" in every.stdout
    wait_until(lambda: site.data.states()["lost.parquet"] == "released", what="the set")
    wait_until(lambda: site.dropped("lost.parquet"), what="its copy's end")
    before = len(site.shelf())
    forced = site.stoker("release", "bad.parquet", "--force")
    assert forced.returncode == 0, forced.stderr
    wait_until(lambda: len(site.shelf()) == before + 1, what="a finding of its own")
    wait_until(lambda: site.data.states()["bad.parquet"] == "quarantined", what="the same end")
