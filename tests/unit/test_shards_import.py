"""Imports: tokens of others become one whole set, its books saying what is not known, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.corpus.records.sources import Books, Source
from stoker.exchange import import_source
from stoker.exchange.import_set import Imported, claim, import_place, path_of
from stoker.exchange.import_source import ImportRefused, tokenizer_refusal
from stoker.shards.format.manifest import Manifest, ManifestInvalid
from stoker.shards.format.proof import inspect_set, prove_set
from stoker.shards.format.reader import ShardSet
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, StorageError
from support.builds import set_bytes
from support.imports import (
    EOT,
    PINNED,
    import_task,
    streams,
    write_predecessor,
    write_tokens,
    write_with_header,
)


def do(home: Path, place: Path, **changes: Any) -> Imported:
    """Import a place that is not on record yet."""
    task = import_task(home, place, **changes)
    task.layout.create()
    return import_place(task, lambda done: None)


def set_at(home: Path, result: Imported) -> ShardSet:
    """The published set: proven, and nothing found against it."""
    path = home / "hot" / "shards" / "prose" / result.source.key16
    assert prove_set(path, key=result.source.key).verdict == "proven"
    assert inspect_set(path).findings == ()
    return ShardSet(path)


def tokens(found: ShardSet, split: str) -> list[int]:
    return [token for part, _ in found.shards(split) for token in part.tolist()]


def documents(ids: Sequence[int], where: str) -> list[list[int]]:
    """The documents of a stream, told apart the plain way."""
    found: list[list[int]] = [[]]
    for token in ids:
        if where == "before" and token == EOT and found[-1]:
            found.append([])
        found[-1].append(token)
        if where == "after" and token == EOT:
            found.append([])
    return [one for one in found if one]


def left(home: Path) -> list[str]:
    """Everything below hot but directories of its own."""
    hot = home / "hot"
    found = [*hot.glob(".building/*"), *hot.glob("shards/prose/*")] if hot.exists() else []
    return sorted(entry.name for entry in found)


@pytest.mark.parametrize("where", ["after", "before"])
def test_a_stream_with_ends_of_text_has_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(import_source, "PIECE_TOKENS", 77)  # pieces end anywhere
    train, val = streams(where=where), streams(where=where, seed=2, documents=3)
    write_tokens(tmp_path / "in" / "train.bin", train)
    write_tokens(tmp_path / "in" / "val.bin", val)
    result = do(tmp_path, tmp_path / "in")
    found = set_at(tmp_path, result)
    assert result.new
    assert tokens(found, "train") == train
    assert [each.tolist() for each in found.documents("train")] == documents(train, where)
    assert [each.tolist() for each in found.documents("val")] == documents(val, where)
    assert found.manifest.end_of_text == where
    assert result.source.books is not None
    books = result.source.books.to_mapping()
    assert (books["rows"], books["chars"], books["dropped"]) == (None, None, None)
    assert books["train"] == {"documents": 40, "tokens": len(train)}
    assert len(found.manifest.bins("train")) > 1
    for part, ends in found.shards("train"):  # no document is cut in two
        assert ends[-1] == len(part)
        assert len(part) < 500 + 61


def test_a_stream_without_an_end_of_text_has_no_documents_that_anybody_knows(tmp_path: Path) -> None:
    train = streams(where=None)
    place = write_predecessor(tmp_path / "in", {"train": [train[:300], train[300:]], "val": [[5, 6, 7]]})
    result = do(tmp_path, place)
    found = set_at(tmp_path, result)
    assert tokens(found, "train") == train
    assert tokens(found, "val") == [5, 6, 7]
    assert result.source.books is not None
    books = result.source.books.to_mapping()
    assert books["documents"] is None
    assert books["train"] == {"documents": None, "tokens": len(train)}
    sizes = [file.tokens for _, file in found.manifest.bins("train")]
    assert sizes[:-1] == [500] * (len(train) // 500)
    assert not list(found.path.glob("*.row"))


def test_the_same_tokens_are_the_same_set_whatever_they_came_in(tmp_path: Path) -> None:
    """Given one stream as a raw file, behind a header, as shards of either width: one set, byte for byte."""
    train, val = streams(), streams(seed=2)
    write_tokens(tmp_path / "raw" / "train.bin", train)
    write_tokens(tmp_path / "raw" / "val.bin", val)
    write_with_header(tmp_path / "head" / "fineweb_train_000001.bin", train[:250])
    write_with_header(tmp_path / "head" / "fineweb_train_000002.bin", train[250:])
    write_with_header(tmp_path / "head" / "fineweb_val_000000.bin", val, magic=20240801, version=7)
    write_predecessor(tmp_path / "shards", {"train": [train[:99], train[99:]], "val": [val]}, dtype="<u4")
    for name in ("raw", "head", "shards"):
        assert do(tmp_path / f"for-{name}", tmp_path / name).new
    made = [
        set_bytes(next((tmp_path / f"for-{name}").glob("hot/shards/prose/*")))
        for name in ("raw", "head", "shards")
    ]
    assert made[0] == made[1] == made[2]
    assert not do(tmp_path / "for-raw", tmp_path / "shards").new
    assert len(left(tmp_path / "for-raw")) == 1


def test_another_split_of_the_same_tokens_is_another_set(tmp_path: Path) -> None:
    ids = streams()
    write_tokens(tmp_path / "a" / "train.bin", ids)
    write_tokens(tmp_path / "b" / "val.bin", ids)
    keys = {do(tmp_path, tmp_path / name).source.key for name in ("a", "b")}
    assert len(keys) == 2


def test_ids_of_a_large_vocabulary_keep_their_width(tmp_path: Path) -> None:
    ids = [1, 69_999, EOT, 70_000, EOT]
    write_tokens(tmp_path / "train.bin", ids, "<u4")
    result = do(tmp_path, tmp_path / "train.bin", vocab_size=70_001)
    assert tokens(set_at(tmp_path, result), "train") == ids


REFUSALS: dict[str, tuple[Any, str]] = {
    "odd size": (lambda home: (home / "train.bin").write_bytes(b"\1\0\2"), "3 bytes are no whole number"),
    "beyond the vocabulary": (lambda home: write_tokens(home / "train.bin", [1, 300]), "token 1 .* id 300"),
    "no split": (lambda home: write_tokens(home / "data.bin", [1]), "neither train nor val"),
    "both splits": (lambda home: write_tokens(home / "train_val.bin", [1]), "neither train nor val"),
    "no tokens": (lambda home: write_tokens(home / "train.bin", []), "no tokens"),
    "nothing": (lambda home: (home / "x.txt").touch(), "no .bin file"),
    "torn header": (
        lambda home: write_with_header(home / "train.bin", [1, 2, 3]).write_bytes(
            write_with_header(home / "train.bin", [1, 2, 3]).read_bytes()[:-2]
        ),
        "header says 3 tokens",
    ),
    "unknown header": (lambda home: write_with_header(home / "train.bin", [1], version=9), "version 9"),
    "short shard": (
        lambda home: write_tokens(
            write_predecessor(home, {"train": [[1, 2, 3]]}) / "train_000000.bin", [1, 2]
        ),
        "4 bytes cannot hold the 3 tokens",
    ),
    "missing shard": (
        lambda home: (write_predecessor(home, {"train": [[1], [2]]}) / "train_000001.bin").unlink(),
        "train_000001.bin: missing",
    ),
    "wrong total": (
        lambda home: write_predecessor(
            home,
            {"train": [[1]]},
            val={"total_tokens": 7, "shards": []},
        ),
        "val.total_tokens is 7",
    ),
    "a shard twice": (
        lambda home: write_predecessor(
            home,
            {"train": [[1]]},
            train={"total_tokens": 2, "shards": [{"path": "train_000000.bin", "tokens": 1}] * 2},
        ),
        "twice",
    ),
    "another name": (
        lambda home: write_predecessor(
            home, {}, train={"total_tokens": 1, "shards": [{"path": "../x/../secret.bin", "tokens": 1}]}
        ),
        "no name of a shard",
    ),
    "no manifest": (lambda home: (home / "manifest.json").write_text("[1]"), "no object"),
    "torn manifest": (lambda home: (home / "manifest.json").write_text('{"train":'), "does not parse"),
    "odd manifest": (lambda home: (home / "manifest.json").write_text('{"train": 3}'), "not a manifest"),
    "a link": (
        lambda home: (home / "train.bin").symlink_to(write_tokens(home.parent / "elsewhere.bin", [1])),
        "symbolic link",
    ),
    "a directory": (lambda home: (home / "train.bin").mkdir(), "no regular file"),
    "our own set": (lambda home: (home / "SHA256SUMS").touch(), "stoker export"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_right_is_refused_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    make, words = REFUSALS[case]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    with pytest.raises(ImportRefused, match=words):
        do(tmp_path, tmp_path / "in")
    assert left(tmp_path) == []
    with pytest.raises(ImportRefused, match="not there"):
        do(tmp_path, tmp_path / "nowhere")


def test_shards_that_were_moved_are_found_by_name_and_orphans_are_told(tmp_path: Path) -> None:
    place = write_predecessor(
        tmp_path / "in",
        {"train": [[1, 2]]},
        train={"total_tokens": 2, "shards": [{"path": "/old/place/train_000000.bin", "tokens": 2}]},
    )
    write_tokens(place / "train_000007.bin", [1])
    result = do(tmp_path, place)
    assert tokens(set_at(tmp_path, result), "train") == [1, 2]
    assert "train_000007.bin" in result.notes[0]


@pytest.mark.parametrize(
    ("said", "stated", "trusted", "refused"),
    [
        (PINNED, None, False, None),
        (PINNED.upper()[:20], None, False, None),
        (PINNED[:15], None, False, "their place says"),
        ("cd" * 32, None, False, "their place says"),
        ("cd" * 32, PINNED, False, "their place says"),
        ("cd" * 32, None, True, None),
        (None, None, False, "does not say"),
        (None, PINNED.upper(), False, None),
        (None, "cd" * 32, False, "stated to be"),
        (PINNED, "cd" * 32, False, "stated to be"),
        (None, None, True, None),
    ],
)
def test_whose_tokens_they_are_must_be_known(
    said: str | None, stated: str | None, trusted: bool, refused: str | None
) -> None:
    reason = tokenizer_refusal(PINNED, said, stated, trusted=trusted)
    assert (reason is None) == (refused is None)
    assert refused is None or refused in str(reason)


def test_a_wrong_tokenizer_refuses_before_a_byte_is_read(tmp_path: Path) -> None:
    place = write_predecessor(tmp_path / "in", {"train": [[1, 2]]}, tokenizer="cd" * 32)
    with pytest.raises(ImportRefused, match="--trust-tokenizer"):
        do(tmp_path, place, trust_tokenizer=False)
    place = write_predecessor(tmp_path / "in", {"train": [[1, 2]]}, tokenizer=PINNED)
    assert do(tmp_path, place, trust_tokenizer=False).new


@pytest.mark.parametrize("shorter", [0, 1])
def test_what_changes_while_it_is_read_is_refused(tmp_path: Path, shorter: int) -> None:
    ids = streams()
    path = write_tokens(tmp_path / "in" / "train.bin", ids)
    os.utime(path, ns=(1, 1))  # a clock that is coarse shows two writes in a row as one

    def change(done: int) -> None:
        write_tokens(path, ids[::-1][shorter:])

    with pytest.raises(ImportRefused, match="changed"):
        import_place(import_task(tmp_path, path), change)
    assert left(tmp_path) == []


def test_an_exports_own_note_is_held_against_what_lies_there(tmp_path: Path) -> None:
    """Given what `stoker export` notes of a file: one with another bit, size or name is not taken over."""
    place = tmp_path / "in"
    path = write_tokens(place / "train.bin", [1, 2, 3])
    told = {"tokens": 3, "size": 6, "sha256": hash_file(path).sha256}
    note = {"format": "nanogpt", "dtype": "uint16", "tokenizer_sha256": PINNED, "files": {"train.bin": told}}
    (place / "meta.json").write_text(json.dumps(note))
    assert do(tmp_path, place, trust_tokenizer=False).new
    write_tokens(path, [1, 2, 4])
    with pytest.raises(ImportRefused, match="sha256 is not the one"):
        do(tmp_path / "again", place)
    write_tokens(path, [1, 2])
    with pytest.raises(ImportRefused, match="says otherwise"):
        do(tmp_path / "again", place)
    path.rename(place / "other_train.bin")
    with pytest.raises(ImportRefused, match="missing, meta"):
        do(tmp_path / "again", place)


def test_one_that_another_source_has_is_not_published(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "in" / "train.bin", streams())
    first = do(tmp_path / "first", path).source
    again = do(tmp_path, path, sources={first.path: first})
    assert (again.source, again.new) == (first, False)
    assert left(tmp_path) == []


def test_a_disk_without_room_is_an_error_of_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "in" / "train.bin", streams())
    with pytest.raises(StorageError, match="to stay free"):
        do(tmp_path, path, floor=1 << 60)
    assert left(tmp_path) == []


def test_a_wrong_set_at_the_target_is_told_not_replaced(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "in" / "train.bin", streams())
    found = set_at(tmp_path, do(tmp_path, path))
    spoiled = found.path / "train-00000.bin"
    data = bytearray(spoiled.read_bytes())
    data[40] ^= 1
    spoiled.write_bytes(data)
    with pytest.raises(DataError, match="the stage-shard loop, which sets it aside"):
        do(tmp_path, path)
    assert spoiled.read_bytes() == data


def test_books_of_what_is_not_known_say_null_and_nothing_else_passes() -> None:
    books = Books(None, None, None, 5, None, 5, None, 0, None).to_mapping()
    assert books["documents"] is None
    assert not Books.from_mapping(books).flaw()
    for wrong in (
        {**books, "tokens": 6},
        {**books, "dropped": {}},
        {**books, "documents": 0},
        {**books, "train": {"documents": 3, "tokens": 5}},
        {**books, "rows": 0},
    ):
        assert Books.from_mapping(wrong).flaw()


def test_a_manifest_must_say_that_it_is_imported_where_its_books_do(tmp_path: Path) -> None:
    found = set_at(tmp_path, do(tmp_path, write_tokens(tmp_path / "in" / "train.bin", streams())))
    body = json.loads(found.manifest.to_bytes())
    for change in (
        {"imported": None},
        {"imported": {"end_of_text": "there"}},
        {"imported": {"end_of_text": None}},
    ):
        data = json.dumps({**body, **change}, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(ManifestInvalid):
            Manifest.parse(data)
    counted = {**body["books"], "rows": body["books"]["documents"], "dropped": {}, "chars": 0}
    with pytest.raises(ManifestInvalid, match="canonical"):  # as if every row were known
        Manifest.parse(json.dumps({**body, "books": counted}, sort_keys=True, separators=(",", ":")).encode())
    del body["imported"]
    with pytest.raises(ManifestInvalid):
        Manifest.parse(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def test_an_index_that_does_not_follow_the_ends_of_text_is_found(tmp_path: Path) -> None:
    """Given another import's tokens under this one's index, a quick look sees it."""
    found = set_at(
        tmp_path, do(tmp_path, write_tokens(tmp_path / "in" / "train.bin", streams(where="before")))
    )
    bin_file = found.path / "train-00000.bin"
    ids = np.fromfile(bin_file, "<u2")
    np.roll(ids, 1).tofile(bin_file)
    assert any("does not end at token" in finding for finding in inspect_set(found.path).findings)


def test_a_content_has_one_record_and_a_name_one_content() -> None:
    def claimed(sources: Mapping[str, Source], taken: set[str], name: str, sha256: str) -> Source:
        return claim(import_task(Path(), Path(name), sources=sources, taken=taken), size=4, sha256=sha256)

    first = claimed({}, set(), "web text.bin", "ab" * 32)
    assert first == Source("prose", "import/web_text", 4, "ab" * 32, imported=True)
    known = {first.path: first.moved("proven", key="cd" * 32)}
    assert claimed(known, set(), "other", "ab" * 32) == known[first.path]
    assert claimed(known, set(), "web text", "ef" * 32).path == "import/web_text-efefefef"
    # A file of the dataset may have that name.
    assert claimed({}, {"import/web"}, "web", "ab" * 32).path == "import/web-abababab"
    lost = {first.path: first.moved("quarantined", reason="lost")}
    again = claimed(lost, set(), "other", "ab" * 32)
    assert (again.path, again.state) == ("import/web_text", "seen")


@pytest.mark.parametrize("name", ["..", "x.parquet", "a/b", "\n", "", "train.bin"])
def test_an_imports_path_is_plain_and_none_that_parquet_has(name: str) -> None:
    path = path_of(name)
    assert path.startswith("import/")
    assert path.count("/") == 1
    assert not path.endswith((".parquet", "/", ".."))
