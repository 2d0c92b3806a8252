"""Imports among the records: behind the listing, outside its limit, never counted as zero."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.dataset import DatasetPin, read_pin, write_pin
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Listing
from stoker.corpus.records.sources import Books, Source
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.schedule.state import Action, Limits, Situation
from stoker.corpus.staging.disk_contents import set_bytes
from stoker.corpus.staging.finding import SET_INVALID, Finding
from stoker.shards.audit.record_audit import Records, record_findings
from stoker.shards.exchange.import_set import import_place
from stokerd.sharding.record_actions import IMPORT_AGAIN, take
from support.imports import import_task, streams, write_tokens
from support.looking import FakeRun, Site, make_site
from support.shard_state import MakeShard, Shard

BOOKS = Books(None, None, None, 7, None, 5, None, 2, None)


def built(path: str, tokens: int = 100, **changes: Any) -> Source:
    return Source(
        "prose",
        path,
        10,
        f"{path:0>64}",
        state="proven",
        key=f"{path:0<64}",
        books=Books(3, 2, 9, tokens, 1, tokens - 1, 1, 1, (("null", 1),)),
        **changes,
    )


def imported(path: str, state: str = "proven") -> Source:
    found = Source("prose", path, 14, f"{path:1>64}", imported=True)
    if state == "seen":
        return found
    return found.moved("proven", key=f"{path:2<64}", books=BOOKS, manifest_sha256="ab" * 32)


def keep(shard: Shard, listing: Listing | None, *sources: Source) -> tuple[tuple[str, ...], bool]:
    """The pin's listing on disk, and whether it is complete, with these sources as they are now."""
    for source in sources:
        shard.dataset.put(source)
    shard.dataset.pinning.listing = listing
    shard.apply(shard.dataset.pinning.keep_listing())
    pin = shard.data.pin()
    return pin.listing, pin.complete


def listed(*paths: str, complete: bool = True) -> Listing:
    return Listing("prose", tuple((path, 1) for path in paths), complete, "")


def catalog(*sources: Source) -> Catalog:
    return Catalog({source.path: source for source in sources})


def test_imports_stand_behind_every_file_and_are_part_of_the_whole(shard: Shard) -> None:
    others = built("z"), imported("import/b"), imported("import/c", "seen")  # c was never there
    assert keep(shard, listed("z"), *others, imported("import/a")) == (("z", "import/a", "import/b"), True)
    lost = imported("import/a", "seen")  # a plan may name it
    assert keep(shard, listed("z"), *others, lost) == (("z", "import/a", "import/b"), False)


def test_an_import_that_came_just_now_is_no_finding_against_a_complete_listing(shard: Shard) -> None:
    assert keep(shard, listed("a"), built("a")) == (("a",), True)
    for late, expected in ((imported("import/x"), 0), (built("b"), 1)):
        records = Records(
            sources={"a": built("a"), late.path: late}, listing=listed("a"), pin=shard.data.pin()
        )
        findings = list(record_findings(shard.pipeline, records, deep=False))
        assert sum("its listing lacks" in finding for finding in findings) == expected


def test_imports_need_no_listing_but_make_none_complete(shard: Shard) -> None:
    for listing in (None, listed(complete=False)):
        assert keep(shard, listing, imported("import/a")) == (("import/a",), False)


@pytest.mark.parametrize("limit", [{"tokens": 150}, {"files": 2}, {"rows": 4}])
def test_imports_are_outside_the_limit(make_shard: MakeShard, limit: dict[str, int]) -> None:
    shard = make_shard(dataset__limit=limit)
    shard.pin()
    sources = built("a"), built("b"), imported("import/x")
    for _ in range(2):  # again with what was listed before
        assert keep(shard, listed("a", "b", "c"), *sources) == (("a", "b", "import/x"), True)
    beyond = shard.dataset.pinning.beyond
    assert [path for path in "abc" if path in beyond] == ["c"]


def test_the_pin_is_durable_before_its_events(make_shard: MakeShard) -> None:
    shard = make_shard()
    pinning = shard.dataset.pinning
    frozen = pinning.freeze({"sha256": "ab" * 32, "vocab_size": 400, "eot": 0}, ())
    assert shard.apply(frozen) == ["WritePin", "dataset_pinned"]
    shard.dataset.put(built("a"))
    pinning.listing = listed("a")
    kept = [shard.apply(pinning.keep_listing()) for _ in range(2)]
    assert kept == [["WritePin", "dataset_complete"], []]


def test_all_that_is_done_for_an_import_is_to_give_up_a_set_that_is_nowhere() -> None:
    limits = Limits(2, 2, 8, 1 << 40, "after_proof")
    lost = imported("import/lost", "seen")
    sources = catalog(imported("import/a"), lost)
    situation = Situation(
        receipts={}, sources=sources, limits=limits, key_of=lambda sha256: f"{sha256[::-1]}"
    )
    assert decide(situation, 0.0) == (Action("give_up_content", "import/lost"),)


def test_sums_count_what_is_known_and_say_how_much_is_not() -> None:
    sums = catalog(built("a"), imported("import/a")).sums
    assert (sums.imported, sums.undocumented) == (1, 1)
    assert sums.documents == {"train": 1, "val": 1}
    assert sums.tokens == {"train": 104, "val": 3}
    assert sums.measured.sets == 1  # an import has no parquet to be measured by
    assert set_bytes(BOOKS, 2) > 14


def test_a_record_of_an_import_survives_its_disk_and_its_renewal() -> None:
    source = imported("import/a")
    assert Source.from_record(source.to_record()) == source
    assert source.renewed(size=14, sha256=source.sha256).imported
    plain = built("a").to_record()
    plain.pop("imported", None)
    assert not Source.from_record(plain).imported


class TestLost:
    @staticmethod
    def given_up(shard: Shard) -> list[str]:
        actions = decide(shard.situation(), 0.0)
        return [one for action in actions for one in shard.apply(take(shard.dataset, action))]

    def test_a_set_that_is_nowhere_is_passed_over(self, shard: Shard) -> None:
        shard.source("import/web", "seen", imported=True)
        assert self.given_up(shard) == ["write quarantined", "import_lost"]
        assert shard.on_disk("import/web").reason == IMPORT_AGAIN
        assert self.given_up(shard) == [], "said once"

    def test_not_while_it_may_be_found(self, warm_shard: Shard) -> None:
        source = warm_shard.source("import/web", "seen", imported=True)
        for disk in warm_shard.state.disks:
            disk.published.add(warm_shard.dataset.key(source)[:16])
            assert "import_lost" not in self.given_up(warm_shard)
            disk.published.discard(warm_shard.dataset.key(source)[:16])
        warm_shard.dataset.convicted[source.path] = Finding(SET_INVALID, "it is set aside")
        assert "import_lost" not in self.given_up(warm_shard)
        del warm_shard.dataset.convicted[source.path]
        warm_shard.end("/warm-lister", Outcome("again", "gone"))
        assert "import_lost" not in self.given_up(warm_shard)


def with_import(site: Site, where: str | None) -> list[int]:
    """Give the site an imported set of the tokenizer it has; returns its train tokens."""
    pipeline = site.pipeline
    pin = read_pin(pipeline.layout, "prose")
    assert pin is not None
    ids = streams(where=where, documents=60, vocab_size=pin.tokenizer.vocab_size)
    ids = [token if token else pin.tokenizer.eot for token in ids]
    place = write_tokens(site.home / "web" / "train.bin", ids)
    import_place(
        import_task(site.home, place.parent, layout=pipeline.layout, hot=pipeline.hot_layout, pin=pin),
        lambda done: None,
    )
    write_pin(
        pipeline.layout, DatasetPin.from_record({**pin.to_record(), "listing": [*pin.listing, "import/web"]})
    )
    return ids


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("looking") / "home")


@pytest.mark.parametrize("where", ["after", None])
def test_batch_and_where_say_what_is_not_known_of_an_import(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str | None
) -> None:
    site = Site(Path(shutil.copytree(site.home, tmp_path / "home")), site.texts)
    ids = with_import(site, where)
    run = FakeRun(site)
    run.plan("import/web")
    run.launch(5)
    run.train(3, 5)
    run.seal()
    assert exit_code(["batch", str(site.file), "main", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    ends = np.flatnonzero(np.asarray(ids) == 0) + 1
    for window in report["windows"]:
        (part,) = window["sets"]
        assert part["source"] == "import/web"
        if where is None:
            assert part["documents"] is None
            continue
        first, last = part["tokens"]
        held = [number for number, end in enumerate(ends) if end > first and ([0, *ends][number]) < last]
        assert [one["document"] for one in part["documents"]] == held
        assert {one["row"] for one in part["documents"]} == {None}
    assert exit_code(["batch", str(site.file), "main", "1"]) == 0
    told = capsys.readouterr().out
    assert ("documents not known" in told) == (where is None)
    assert ("(imported)" in told) == (where is not None)
    assert exit_code(["where", str(site.file), "import/web:0"]) == 64
    assert "was imported" in capsys.readouterr().err
    assert exit_code(["plan", str(site.file)]) == 0
