"""Sets that an earlier `stoker import` made: behind the listing, outside its limit, never counted as zero."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, read_pin
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Listing
from stoker.corpus.records.sources import Books, Source
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.state import Action, Limits, Situation
from stoker.corpus.staging.disk_contents import set_bytes
from stoker.shards.format.manifest import EndOfText, Manifest, ManifestInvalid
from stoker.shards.format.proof import inspect_set, prove_set
from stoker.shards.format.reader import ShardSet
from stoker.store.layout import HotLayout, StateLayout
from stokerd.sharding.record_actions import take
from support.imports import EOT, import_set, streams
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


def test_sums_count_what_is_known() -> None:
    sums = catalog(built("a"), imported("import/a")).sums
    assert sums.imported == 1
    assert sums.documents == {"train": 1, "val": 1}
    assert sums.tokens == {"train": 104, "val": 3}
    assert sums.measured.sets == 1  # an import has no parquet to be measured by
    assert set_bytes(BOOKS, 2) > 14


def test_a_record_of_an_import_survives_its_disk_and_its_renewal() -> None:
    source = imported("import/a")
    assert Source.from_record(source.to_record()) == source
    assert source.renewed(size=14, sha256=source.sha256).imported


def test_a_set_that_is_nowhere_is_passed_over_and_that_is_said_once(shard: Shard) -> None:
    shard.source("import/web", "seen", imported=True)
    (action,) = decide(shard.situation(), 0.0)
    assert shard.apply(take(shard.dataset, action)) == ["write quarantined", "content_gone"]
    assert shard.on_disk("import/web").reason == "content_gone"
    assert not decide(shard.situation(), 0.0)


def with_import(site: Site, where: EndOfText | None) -> list[int]:
    """Give the site an imported set of the tokenizer it has; returns its train tokens."""
    layout, pin = site.pipeline.layout, read_pin(site.pipeline.layout, "prose")
    assert pin is not None
    ids = streams(where=where, documents=60, vocab_size=pin.tokenizer.vocab_size)
    ids = [token if token else pin.tokenizer.eot for token in ids]
    import_set(layout, site.pipeline.hot_layout, pin, ids, where=where)
    return ids


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("looking") / "home")


@pytest.mark.parametrize("where", ["after", None])
def test_batch_and_where_say_what_is_not_known_of_an_import(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: EndOfText | None
) -> None:
    site = Site(Path(shutil.copytree(site.home, tmp_path / "home")), site.texts)
    ids = with_import(site, where)
    run = FakeRun(site)
    run.plan("import/web")
    run.launch(5)
    run.train(3, 5)
    run.seal()
    assert exit_code(["data", "batch", str(site.file), "main", "1", "--json"]) == 0
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
    assert exit_code(["data", "batch", str(site.file), "main", "1"]) == 0
    told = capsys.readouterr().out
    assert ("documents not known" in told) == (where is None)
    assert ("(imported)" in told) == (where is not None)
    assert exit_code(["data", "where", str(site.file), "import/web:0"]) == 64
    assert "was imported" in capsys.readouterr().err
    assert exit_code(["data", "plan", str(site.file)]) == 0


@pytest.fixture
def make_set(tmp_path: Path) -> Callable[..., ShardSet]:
    """Makes an imported set of these tokens, as an earlier `stoker import` did."""
    tokenizer = TokenizerPin("tokenizer.json", "cd" * 32, 300, EOT)
    pin = DatasetPin("prose", 1, "ab" * 32, {"shard_tokens": 500}, tokenizer, {})
    layout, hot = StateLayout(tmp_path / "state"), HotLayout(tmp_path / "hot")
    layout.create()

    def make(ids: Sequence[int], where: EndOfText | None = "after") -> ShardSet:
        return ShardSet(hot.shard_set("prose", import_set(layout, hot, pin, ids, where=where).key or ""))

    return make


@pytest.mark.parametrize("where", ["after", "before", None])
def test_a_set_of_an_earlier_import_is_proven_and_read(
    make_set: Callable[..., ShardSet], where: EndOfText | None
) -> None:
    ids = streams(where=where)
    found = make_set(ids, where)
    assert prove_set(found.path).verdict == "proven"
    assert inspect_set(found.path).findings == ()
    assert [token for part, _ in found.shards("train") for token in part.tolist()] == ids
    assert len(found.manifest.bins("train")) > 1
    documents = [each.tolist() for each in found.documents("train")]
    if where is not None:
        edge = -1 if where == "after" else 0
        assert len(documents) == 40
        assert {document[edge] for document in documents} == {EOT}
    assert (found.manifest.books.documents, found.manifest.books.rows) == (40 if where else None, None)


def test_a_manifest_must_say_that_it_is_imported_where_its_books_do(
    make_set: Callable[..., ShardSet],
) -> None:
    body = json.loads(make_set(streams()).manifest.to_bytes())
    counted = {**body["books"], "rows": body["books"]["documents"], "dropped": {}, "chars": 0}
    for change in (
        {"imported": None},
        {"imported": {"end_of_text": "there"}},
        {"imported": {"end_of_text": None}},
        {"books": counted},  # as if every row were known
    ):
        data = json.dumps({**body, **change}, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(ManifestInvalid):
            Manifest.parse(data)
    del body["imported"]
    with pytest.raises(ManifestInvalid):
        Manifest.parse(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def test_an_index_that_does_not_follow_the_ends_of_text_is_found(make_set: Callable[..., ShardSet]) -> None:
    """Given another import's tokens under this one's index, a quick look sees it."""
    found = make_set(streams(where="before"), "before")
    bin_file = found.path / "train-00000.bin"
    np.roll(np.fromfile(bin_file, "<u2"), 1).tofile(bin_file)
    assert any("does not end at token" in finding for finding in inspect_set(found.path).findings)
