"""The stage-shard loop over files that were fetched: the test plays the download watchdog, by hand."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.quarantine.directory import read_quarantine
from stoker.corpus.records.receipts import (
    Demand,
    Listing,
    Receipt,
    ReceiptState,
    Unneeded,
    read_demand,
    write_listing,
    write_receipt,
)
from stoker.corpus.records.sources import DOWNLOAD_FAILED
from stoker.store.direct import hash_file
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.requests import Request, file_request, finish_request
from stokerd.sharding.inbox import PROVE_SET
from support.asked import filed_requests
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.waiting import wait_until

ROWS = 60


class Landing:
    """What the download watchdog would do: files, their receipts, the listing, what is demanded and asked."""

    def __init__(self, home: Path, tokenizer: dict[str, str]) -> None:
        (home / "urls.txt").parent.mkdir(parents=True, exist_ok=True)
        (home / "urls.txt").write_text("http://127.0.0.1:1/a.parquet\n")
        source = {"kind": "urls", "urls_file": str(home / "urls.txt")}
        about = {"dataset__source": source, "shard__release": "after_proof"}
        self.data: DataPipeline = make_pipeline(home, tokenizer=tokenizer, **about)
        self.layout = self.data.pipeline.layout
        self.layout.create()
        self.root = self.data.pipeline.source_root
        self.root.mkdir(parents=True)

    def lists(self, *paths: str) -> None:
        """Every file has its receipt, and these are all."""
        files = tuple((path, ROWS * 100) for path in paths)
        write_listing(self.layout, Listing("prose", files, complete=True, revision="1"))

    def bring(self, path: str, seed: int) -> None:
        """A file that is here and true."""
        write_fineweb(self.root / path, ROWS, seed=seed)
        found = hash_file(self.root / path)
        self._write(path, "verified", found.size, found.sha256)

    def give_up(self, path: str) -> None:
        """A file of which nothing is known but that it cannot be had."""
        self._write(path, "given_up", 0, "")

    def set(self, path: str, state: ReceiptState) -> None:
        write_receipt(self.layout, replace(self.data.receipts()[path], state=state))

    def _write(self, path: str, state: ReceiptState, size: int, sha256: str) -> None:
        file = str(self.root / path)
        write_receipt(self.layout, Receipt("prose", path, file, size, sha256, "", f"e{size}", state))

    def demand(self) -> Demand:
        return read_demand(self.layout, "prose")

    def until_demanded(self, *, unneeded: Collection[str] = (), missed: Collection[str] = ()) -> Demand:
        """The demand, once it is about these paths and no others."""

        def is_so() -> bool:
            demand = self.demand()
            return demand.unneeded.keys() == set(unneeded) and demand.missed.keys() == set(missed)

        wait_until(is_so, what=f"{unneeded} to go and {missed} to come, not {self.demand()}")
        return self.demand()

    def asked(self, verb: str, path: str) -> Request:
        """The only request of this verb, once it was filed."""

        def filed() -> list[Request]:
            return [one for one in filed_requests(self.layout, DOWNLOAD_WATCHDOG) if one.verb == verb]

        wait_until(filed, what=f"{verb} of {path}")
        (request,) = filed()
        assert request.args["path"] == path
        return request

    def remove(self, path: str) -> None:
        self.set(path, "releasing")
        (self.root / path).unlink()
        self.set(path, "released")

    def events(self, word: str) -> list[dict[str, Any]]:
        return self.data.events("stage_shard", word)

    def until(self, states: dict[str, str]) -> None:
        wait_until(lambda: self.data.states() == states, what=f"{states}, not {self.data.states()}")

    def until_shown(self, *, release: int) -> None:
        """So many removals are waited for, as the loop shows it."""
        asked = {"release": release, "fetch": 0}
        wait_until(lambda: self.data.status().get("landing", {}).get("asked") == asked, what=str(asked))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The stage-shard loop, ended well."""
        daemon = self.data.start("stage_shard")
        try:
            yield
        finally:
            code = daemon.stop()
        assert code == 0, daemon.said()


def told(*words: str) -> tuple[int, str]:
    """Run a command line; its exit code, and what it said."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        return exit_code(words), out.getvalue()


@pytest.fixture
def landing(drained: Template, tmp_path: Path) -> Landing:
    return Landing(tmp_path, drained.tokenizer)


def test_files_go_when_their_sets_stand_for_them_and_come_back_when_those_are_lost(landing: Landing) -> None:
    """What cannot be fetched is quarantined until it comes."""
    for path, seed in (("a.parquet", 1), ("b.parquet", 2), ("same.parquet", 1), ("went.parquet", 4)):
        landing.bring(path, seed)
    (landing.root / "went.parquet").unlink()
    for path in ("lost.parquet", "more.parquet"):
        landing.give_up(path)
    landing.lists(*(f"{name}.parquet" for name in ("a", "b", "lost", "more", "same", "went")))
    built = {"a.parquet": "released", "b.parquet": "released", "same.parquet": "duplicate"}
    bad = {"more.parquet": "quarantined", "went.parquet": "quarantined"}
    with landing.at_work():
        what_cannot_be_fetched_is_quarantined_until_it_comes(landing, {**built, **bad})
        built["lost.parquet"] = "released"
        demand = landing.until_demanded(unneeded=built)
        receipts = landing.data.receipts()
        owners = {**{path: path for path in built}, "same.parquet": "a.parquet"}
        assert demand.unneeded == {
            path: Unneeded(receipts[path].sha256, owner) for path, owner in owners.items()
        }
        assert {one["path"] for one in landing.events("stage_failed")} <= {"went.parquet"}
    with landing.at_work():  # the demand stays
        landing.until_shown(release=4)
        assert landing.demand() == demand
        for path in built:
            landing.remove(path)
        landing.until_demanded()

        lost = landing.data.sources()["a.parquet"]
        shutil.rmtree(landing.data.pipeline.hot_layout.shard_set("prose", str(lost.key)))
        file_request(landing.layout, STAGE_SHARD, PROVE_SET, {"key": lost.key})  # so that it looks at once
        wanted = landing.until_demanded(missed=["a.parquet"])  # and not its duplicate as well
        assert wanted.missed == {"a.parquet": lost.sha256}
        landing.set("a.parquet", "disputed")
        landing.bring("a.parquet", 1)
        landing.until({**built, **bad})
        landing.until_demanded(unneeded=["a.parquet"])
        (told_of,) = landing.events("source_wanted_again")
        assert told_of["path"] == "a.parquet"
    assert landing.data.sources()["a.parquet"] == lost
    report = json.loads(told("audit", str(landing.data.file), "--json")[1])
    assert report["balanced"], report["findings"]
    assert (report["sources"]["quarantined"], report["sources"]["total"]) == (2, 6)


def what_cannot_be_fetched_is_quarantined_until_it_comes(landing: Landing, states: dict[str, str]) -> None:
    """Of the files that were given up, one comes when its release is asked for; `states` are the others'."""
    disputed = landing.asked("dispute", "went.parquet")
    landing.set("went.parquet", "disputed")
    finish_request(landing.layout, DOWNLOAD_WATCHDOG, disputed, {"receipt": "disputed"})
    landing.give_up("went.parquet")
    landing.until({**states, "lost.parquet": "quarantined"})
    wait_until(lambda: landing.data.pin().complete, what="the dataset's end")
    told_of = landing.events("source_quarantined")
    assert sorted(one["path"] for one in told_of) == ["lost.parquet", "more.parquet", "went.parquet"]
    assert {one["reason"] for one in told_of} == {DOWNLOAD_FAILED}

    code, said = told("quarantine", "release", str(landing.data.file), "lost.parquet")
    assert (code, "asked to fetch it" in said) == (0, True), said
    wanted = landing.asked("fetch", "lost.parquet")
    assert wanted.args["sha256"] is None
    landing.bring("lost.parquet", 3)
    finish_request(landing.layout, DOWNLOAD_WATCHDOG, wanted, {"receipt": "verified"})
    landing.until({**states, "lost.parquet": "released"})
    wait_until(lambda: landing.events("source_released_from_quarantine"), what="the finding's end")
    findings = read_quarantine(landing.layout.quarantine)
    standing = {kept.path for kept in findings if kept.released is None}
    assert standing == {"more.parquet", "went.parquet"}
