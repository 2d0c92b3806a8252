"""The audit of the data half: a balanced pipeline, and one finding for each thing that is wrong with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker.shards.audit.audit
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, read_pin, write_pin
from stoker.corpus.records.receipts import Listing, Receipt, read_receipts, write_listing, write_receipt
from stoker.corpus.records.sources import Books, Source, read_sources, write_source
from stoker.shards.audit.audit import DataAudit, audit_sets
from stoker.shards.build.build_worker import main
from stoker.shards.format.identity import set_key
from stoker.shards.format.proof import prove_set
from stoker.store.files import canonical_json
from support.builds import Recorder, build_task, small_tokenizer
from support.text import documents, write_parquet

PIPELINE = """
name: small
state: state
hot: hot
dataset: {{name: prose, source: {{kind: folder, path: source}}, filters: {{min_chars: 10}}}}
tokenizer: {{train: {{vocab_size: 600, train_bytes: 1MB}}}}
shard: {{val_ratio: 0.1, shard_tokens: 9000}}
train: {{run: main, steps: 10, model: {model}}}
"""
MODEL = "{layers: 1, width: 32, heads: 2, kv_heads: 2, ffn_width: 64}"
PATHS = ("a.parquet", "b.parquet")
LISTED = (*PATHS, "bad", "same")


@dataclass(frozen=True)
class Site:
    """A pipeline with two proven sources, one duplicate and one in quarantine."""

    home: Path

    @property
    def pipeline(self) -> Pipeline:
        return load_pipeline(self.home / "small.yaml", {})

    def audit(self, *, deep: bool = False) -> DataAudit:
        return audit_sets(self.pipeline, deep=deep)

    def source(self, path: str = PATHS[0]) -> Source:
        return read_sources(self.pipeline.layout, "prose")[path]

    def set_of(self, path: str = PATHS[0]) -> Path:
        key = self.source(path).key
        assert key is not None
        return self.pipeline.hot_layout.shard_set("prose", key)

    def write(self, source: Source) -> None:
        write_source(self.pipeline.layout, source)


def make_site(home: Path) -> Site:
    site = Site(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / "small.yaml").write_text(PIPELINE.format(model=MODEL))
    (home / "source").mkdir()
    layout = site.pipeline.layout
    layout.create()
    tokenizer = small_tokenizer(layout.tokenizer("prose", 1))
    for number, path in enumerate(PATHS):
        parquet = write_parquet(home / "source" / path, documents(300, seed=number))
        task = build_task(home, parquet, tokenizer, shard_tokens=9000)
        done = main(task, Recorder())
        sha256, size = task["source"]["sha256"], task["source"]["size"]
        write_receipt(layout, Receipt("prose", path, str(parquet), size, sha256, "", "", "verified"))
        site.write(
            Source(
                "prose",
                path,
                size,
                sha256,
                state="proven",
                key=task["key"],
                books=Books.from_mapping(done["books"]),
                manifest_sha256=done["manifest_sha256"],
            )
        )
        pinned = TokenizerPin(
            f"tokenizers/{tokenizer.name}",
            task["build"]["tokenizer_sha256"],
            task["build"]["vocab_size"],
            task["build"]["eot"],
        )
        write_pin(
            layout, DatasetPin("prose", 1, task["build_id"], task["build"], pinned, {}, None, LISTED, True)
        )
    write_listing(layout, Listing("prose", tuple((path, 1) for path in LISTED), True, ""))
    first = site.source()
    write_receipt(layout, Receipt("prose", "same", "", first.size, first.sha256, "", "", "verified"))
    site.write(Source("prose", "same", first.size, first.sha256, state="duplicate"))
    write_receipt(layout, Receipt("prose", "bad", "", 1, "c" * 64, "", "", "verified"))
    site.write(Source("prose", "bad", 1, "c" * 64, state="quarantined", reason="page_corrupt"))
    return site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("audit") / "home").home


@pytest.fixture
def site(built: Path, tmp_path: Path) -> Site:
    """A copy to spoil; the receipts still point to the first one's source folder."""
    return Site(Path(shutil.copytree(built, tmp_path / "home")))


def only(audit: DataAudit, *words: str) -> None:
    """Every finding has to do with these words, and there is at least one."""
    assert audit.findings
    assert all(any(word in finding for word in words) for finding in audit.findings), audit.findings


def test_a_whole_pipeline_has_no_findings_and_adds_up(site: Site) -> None:
    audit = site.audit()
    books = [site.source(path).books for path in PATHS]
    assert audit.findings == ()
    assert audit.sources == {"total": 4, "proven": 2, "quarantined": 1, "duplicate": 1}
    assert audit.rows == 600
    assert audit.rows == audit.documents + sum(audit.dropped.values())
    assert audit.tokens["train"] == sum(one.train_tokens for one in books if one)
    assert (audit.recounted, audit.on_record) == (("manifests", "sizes"), ("parquet rows",))
    assert json.dumps(audit.figures())


def test_a_deep_audit_counts_the_parquet_again(site: Site) -> None:
    audit = site.audit(deep=True)
    assert audit.findings == ()
    assert "parquet rows" in audit.recounted
    assert audit.on_record == ()


def test_a_deep_audit_says_what_it_could_not_recount(site: Site) -> None:
    source = site.source()
    receipt = Receipt(
        "prose", source.path, str(site.home / "gone"), source.size, source.sha256, "", "", "released"
    )
    write_receipt(site.pipeline.layout, receipt)
    audit = site.audit(deep=True)
    assert (audit.findings, audit.on_record) == ((), ("parquet rows",))


def test_a_document_dropped_from_an_index_names_it_and_both_sizes(site: Site) -> None:
    index = site.set_of() / "train-00000.idx"
    size = index.stat().st_size
    index.write_bytes(index.read_bytes()[:-8])
    only(site.audit(), f"train-00000.idx: {size - 8} bytes, the manifest says {size}")


def test_a_document_dropped_in_an_index_that_keeps_its_size_is_found_without_deep(site: Site) -> None:
    index = site.set_of() / "train-00000.idx"
    ends = index.read_bytes()
    middle = len(ends) // 16 * 8 + 24
    index.write_bytes(ends[:middle] + ends[middle - 8 : middle] + ends[middle + 8 :])
    assert len(index.read_bytes()) == len(ends)
    only(site.audit(), f"{index}: its sha256 differs")


def test_a_link_in_the_place_of_a_data_file_is_found(site: Site) -> None:
    tokens = site.set_of() / "train-00000.bin"
    tokens.rename(site.home / "elsewhere")
    tokens.symlink_to(site.home / "elsewhere")
    only(site.audit(), f"{tokens}: not a regular file")
    assert prove_set(site.set_of()).reason == "train-00000.bin: not a regular file"


def test_a_line_too_many_in_the_sums_is_found(site: Site) -> None:
    sums = site.set_of() / "SHA256SUMS"
    sums.write_text(sums.read_text() + "0" * 64 + "  zzz\n")
    only(site.audit(), f"{sums}: it and manifest.json disagree on zzz")


def test_two_swapped_token_files_are_named(site: Site) -> None:
    one, other = (site.set_of() / f"train-0000{number}.bin" for number in (0, 1))
    data = one.read_bytes(), other.read_bytes()
    one.write_bytes(data[1])
    other.write_bytes(data[0])
    only(site.audit(), "train-00000", "train-00001")


def test_two_swapped_token_files_of_one_size_are_named_without_hashing(site: Site) -> None:
    """Two sets, their first shards brought to one length: sizes cannot tell them apart."""
    one, other = (site.set_of(path) / "train-00000.bin" for path in PATHS)
    size = one.stat().st_size
    one.write_bytes((other.read_bytes() * 2)[:size])
    only(site.audit(), str(one))


def test_one_flipped_bit_is_found_by_a_deep_audit(site: Site) -> None:
    path = site.set_of() / "train-00000.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    assert site.audit().findings == ()
    only(site.audit(deep=True), "train-00000.bin: its sha256 differs")


def test_an_edited_book_in_a_record_names_the_figure(site: Site) -> None:
    source = site.source()
    assert source.books is not None
    books = source.books.to_mapping()
    books["train"]["tokens"] += 7
    books["dropped"]["min_chars"] -= 1
    site.write(replace(source, books=Books.from_mapping(books)))
    findings = site.audit().findings
    assert len(findings) == 2
    assert any(f"train.tokens is {books['train']['tokens'] - 7}" in finding for finding in findings)
    assert any(f"dropped.min_chars is {books['dropped']['min_chars'] + 1}" in finding for finding in findings)
    assert all(source.path in finding and "manifest.json" in finding for finding in findings)


def test_an_edited_book_in_a_manifest_is_found(site: Site) -> None:
    manifest = site.set_of() / "manifest.json"
    body = json.loads(manifest.read_bytes())
    body["books"]["chars"] += 1
    manifest.write_bytes(canonical_json(body))
    only(site.audit(), "manifest.json")
    assert any("chars is" in finding for finding in site.audit().findings)


def test_an_edited_record_that_no_longer_sums_is_found(site: Site) -> None:
    record = site.pipeline.layout.source("prose", PATHS[0])
    record.write_text(record.read_text().replace('"attempts":0', '"attempts":1'))
    audit = site.audit()
    assert any(str(record) in finding and "sums to" in finding for finding in audit.findings)
    assert any(f"{PATHS[0]} is not on record" in finding for finding in audit.findings)


@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS", "val-00000.idx", "train-00001.row"])
def test_a_deleted_file_is_named(site: Site, name: str) -> None:
    (site.set_of() / name).unlink()
    only(site.audit(), f"{name}: missing")


def test_a_missing_set_is_named_with_its_source(site: Site) -> None:
    directory = site.set_of()
    shutil.rmtree(directory)
    only(site.audit(), f"{directory}: missing, {PATHS[0]}")


def test_an_extra_set_is_named(site: Site) -> None:
    extra = site.set_of().with_name("0123456789abcdef")
    shutil.copytree(site.set_of(), extra)
    only(site.audit(), f"{extra}: an extra set")


def test_a_set_of_an_earlier_version_and_format_is_left_in_peace(site: Site) -> None:
    change_pin(version=2)(site)
    file = site.home / "small.yaml"
    file.write_text(file.read_text().replace("name: prose,", "name: prose, version: 2,"))
    body = json.loads((site.set_of() / "manifest.json").read_bytes())
    body["build_id"] = "e" * 64
    body["files"] = {name: told for name, told in body["files"].items() if not name.endswith(".row")}
    key = set_key(body["source"]["sha256"], body["build_id"])
    old = site.set_of().with_name(key[:16])
    old.mkdir()
    (old / "manifest.json").write_bytes(canonical_json({**body, "key": key}))
    assert site.audit().findings == ()
    old.rename(old.with_name("0123456789abcdef"))
    only(site.audit(), "an extra set")


def test_an_extra_file_in_a_set_is_named(site: Site) -> None:
    (site.set_of() / "train-00099.bin").write_bytes(b"")
    only(site.audit(), "train-00099.bin: in no list")


def test_a_set_just_published_before_its_record_is_no_finding(site: Site) -> None:
    source = site.source()
    pin = read_pin(site.pipeline.layout, "prose")
    assert pin is not None
    write_pin(site.pipeline.layout, replace(pin, complete=False))
    site.write(replace(source, state="building", books=None, manifest_sha256=None))
    assert site.audit().findings == ()


def test_books_that_only_the_parquet_gives_the_lie_are_found_by_a_deep_audit(site: Site) -> None:
    """Manifest, sums and record all tell the same: a row booked under the wrong filter."""
    manifest, sums = site.set_of() / "manifest.json", site.set_of() / "SHA256SUMS"
    old = manifest.read_bytes()
    body = json.loads(old)
    body["books"]["dropped"]["null"] -= 1
    body["books"]["dropped"]["min_chars"] += 1
    new = canonical_json(body)
    manifest.write_bytes(new)
    before, after = (hashlib.sha256(data).hexdigest() for data in (old, new))
    sums.write_text(sums.read_text().replace(before, after))
    site.write(replace(site.source(), books=Books.from_mapping(body["books"]), manifest_sha256=after))
    assert site.audit().findings == ()
    null = body["books"]["dropped"]["null"]
    findings = site.audit(deep=True).findings
    assert any(f"dropped.null is {null}" in finding and f": {null + 1}" in finding for finding in findings)


def test_a_wrong_row_number_with_every_sum_made_to_agree_is_found_by_a_deep_audit(site: Site) -> None:
    name = "train-00000.row"
    rows = np.fromfile(site.set_of() / name, "<u8")
    told = hashlib.sha256(rows.tobytes()).hexdigest()
    place = int(np.flatnonzero(np.diff(rows) > 1)[0])  # a row after this document was dropped, or held out
    rows[place] += 1
    (site.set_of() / name).write_bytes(rows.tobytes())
    now = hashlib.sha256(rows.tobytes()).hexdigest()
    manifest, sums = site.set_of() / "manifest.json", site.set_of() / "SHA256SUMS"
    old = manifest.read_bytes()
    new = old.replace(told.encode(), now.encode())
    manifest.write_bytes(new)
    before, after = (hashlib.sha256(data).hexdigest() for data in (old, new))
    sums.write_text(sums.read_text().replace(told, now).replace(before, after))
    site.write(replace(site.source(), manifest_sha256=after))
    assert site.audit().findings == ()
    assert site.audit(deep=True).findings == (
        f"{site.set_of()}: train document {place} is from row {rows[place]} by its .row file, "
        f"from row {rows[place] - 1} by the parquet",
    )


def change_source(**changes: Any) -> Callable[[Site], None]:
    return lambda site: site.write(replace(site.source(), **changes))


def change_pin(**changes: Any) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        pin = read_pin(site.pipeline.layout, "prose")
        assert pin is not None
        write_pin(site.pipeline.layout, replace(pin, **changes))

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change_source(manifest_sha256="0" * 64), "manifest.json: sha256"),
        (change_source(key="0" * 64), "is not that of its content"),
        (change_source(sha256="0" * 64), "is not that of its content"),
        (change_source(books=None), "without key or books"),
        (change_source(size=1), "source size"),
        (change_source(state="quarantined", reason=None), "without a reason"),
        (change_pin(build_id="0" * 64), "build_id"),
        (change_pin(listing=(*PATHS, "never.parquet")), "never.parquet is not on record"),
        (lambda site: site.pipeline.layout.tokenizer("prose", 1).write_text("{}"), "is not the pinned"),
        (lambda site: site.pipeline.layout.tokenizer("prose", 1).unlink(), "tokenizer"),
        (lambda site: site.pipeline.layout.dataset("prose").write_text("{"), "is not JSON"),
        (lambda site: site.pipeline.layout.receipt("prose", PATHS[0]).unlink(), "has no receipt"),
        (
            lambda site: write_source(
                site.pipeline.layout, Source("prose", "lone", 1, "d" * 64, state="duplicate")
            ),
            "duplicate of nothing",
        ),
    ],
)
def test_records_that_disagree_are_named(site: Site, spoil: Callable[[Site], object], words: str) -> None:
    spoil(site)
    assert any(words in finding for finding in site.audit().findings), site.audit().findings


def change_receipt(**changes: Any) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        layout = site.pipeline.layout
        write_receipt(layout, replace(read_receipts(layout, "prose")[PATHS[0]], **changes))

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change_receipt(sha256="0" * 64), "its receipt says 0000000000000000"),
        (change_receipt(size=5), "its receipt says 5"),
        (change_source(evicted=True), "evicted, but no warm store"),
        (change_pin(version=2), "version 2, "),
        (change_pin(listing=LISTED[1:]), "its listing lacks a.parquet"),
        (lambda site: site.pipeline.layout.listing("prose").unlink(), "listings/prose.json: missing"),
        (lambda site: site.pipeline.layout.listing("prose").write_text("{"), "listings/prose.json"),
    ],
)
def test_records_that_only_their_neighbours_give_the_lie_are_found(
    site: Site, spoil: Callable[[Site], object], words: str
) -> None:
    spoil(site)
    only(site.audit(), words)


def test_a_pipeline_that_has_nothing_yet_is_not_balanced(site: Site) -> None:
    shutil.rmtree(site.home / "state")
    shutil.rmtree(site.home / "hot")
    site.pipeline.layout.create()
    only(site.audit(), "nothing to audit")


class TestWithWarm:
    """One set is on hot with a copy on warm, the other on warm only."""

    @pytest.fixture
    def warm(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(stoker.shards.audit.audit, "MOVING_S", 0.0)
        file = site.home / "small.yaml"
        file.write_text(file.read_text().replace("shard: {", "warm: warm\nshard: {release: after_sync, "))
        layout = site.pipeline.warm_layout
        assert layout is not None
        for path in PATHS:
            shutil.copytree(site.set_of(path), layout.shards("prose") / site.set_of(path).name)
            site.write(replace(site.source(path), state="released", on_warm=True))
        shutil.rmtree(site.set_of(PATHS[1]))
        site.write(replace(site.source(PATHS[1]), evicted=True))
        layout.owner_lock.touch()
        return layout.shards("prose")

    def test_an_evicted_set_is_audited_where_it_lies(self, site: Site, warm: Path) -> None:
        for deep in (False, True):
            audit = site.audit(deep=deep)
            assert audit.findings == ()
            assert audit.rows == 600
        assert audit.on_record == ()
        (warm / site.set_of(PATHS[1]).name / "train-00000.idx").write_bytes(b"")
        only(site.audit(), "train-00000.idx")

    def test_a_warm_disk_that_is_not_there_leaves_the_set_on_record(self, site: Site, warm: Path) -> None:
        shutil.rmtree(site.home / "warm")
        audit = site.audit()
        assert audit.findings == ()
        assert audit.rows == 600
        assert "sets on a warm disk that is not there now" in audit.on_record

    def test_a_set_where_its_record_does_not_say_is_found(self, site: Site, warm: Path) -> None:
        shutil.copytree(warm / site.set_of(PATHS[1]).name, site.set_of(PATHS[1]))
        only(site.audit(), "here, the record of b.parquet says that it is on warm only")

    def test_one_that_is_in_neither_place_is_missing(self, site: Site, warm: Path) -> None:
        shutil.rmtree(warm / site.set_of(PATHS[1]).name)
        only(site.audit(), "missing, b.parquet is released")

    def test_a_copy_that_is_gone_or_rotten_is_found(self, site: Site, warm: Path) -> None:
        copied = warm / site.set_of().name
        data = bytearray((copied / "train-00000.bin").read_bytes())
        data[len(data) // 2] ^= 1
        (copied / "train-00000.bin").write_bytes(data)
        assert site.audit().findings == ()  # it is not read in a quick one
        only(site.audit(deep=True), "train-00000.bin: its sha256 differs")
        shutil.rmtree(copied)
        only(site.audit(), "missing, the record of a.parquet says that its copy was proven")

    def test_extra_folders_on_warm_are_found_and_copies_in_the_making_are_not(
        self, site: Site, warm: Path
    ) -> None:
        (warm / ".tmp-0123456789abcdef").mkdir()
        (warm / "0123456789abcdef").mkdir()
        only(site.audit(), "0123456789abcdef: an extra set")

    def test_a_set_that_is_leaving_may_be_in_either_place(self, site: Site, warm: Path) -> None:
        site.write(replace(site.source(), evicting=True))
        assert site.audit().findings == ()
        shutil.rmtree(site.set_of())
        assert site.audit().findings == ()
