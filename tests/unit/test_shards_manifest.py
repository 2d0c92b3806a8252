"""A manifest is canonical, agrees in itself, and its books balance, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stoker.corpus.records.sources import Books
from stoker.shards.format.identity import set_key
from stoker.shards.format.manifest import (
    KINDS,
    DataFile,
    Manifest,
    ManifestInvalid,
    parse_sums,
    sums_text,
)
from stoker.store.files import canonical_json

SHA = "0123456789abcdef" * 4


def manifest() -> Manifest:
    return Manifest(
        dataset="prose",
        key=set_key(SHA, SHA),
        build_id=SHA,
        source_size=1234,
        source_sha256=SHA,
        tokenizer_sha256=SHA,
        vocab_size=600,
        eot=0,
        dtype="uint16",
        books=Books(10, 7, 500, 300, 7, 300, 0, 0, (("min_chars", 1), ("null", 2))),
        files={
            "train-00000.bin": DataFile(400, SHA, 200, 4),
            "train-00000.idx": DataFile(32, SHA),
            "train-00000.row": DataFile(32, SHA),
            "train-00001.bin": DataFile(200, SHA, 100, 3),
            "train-00001.idx": DataFile(24, SHA),
            "train-00001.row": DataFile(24, SHA),
            "val-00000.bin": DataFile(0, SHA, 0, 0),
            "val-00000.idx": DataFile(0, SHA),
            "val-00000.row": DataFile(0, SHA),
        },
    )


def test_a_manifest_survives_its_own_bytes() -> None:
    data = manifest().to_bytes()
    again = Manifest.parse(data)
    assert again == manifest()
    assert again.to_bytes() == data
    assert [name for name, _ in again.bins("train")] == ["train-00000.bin", "train-00001.bin"]


def test_it_has_the_fields_that_others_read() -> None:
    body = json.loads(manifest().to_bytes())
    assert body["books"] == {
        "rows": 10, "documents": 7, "dropped": {"min_chars": 1, "null": 2}, "chars": 500, "tokens": 300,
        "train": {"documents": 7, "tokens": 300}, "val": {"documents": 0, "tokens": 0},
    }  # fmt: skip
    assert body["streams"] == ["tokens"]
    assert body["files"]["train-00001.bin"] == {"size": 200, "sha256": SHA, "tokens": 100, "documents": 3}
    assert body["files"]["train-00001.idx"] == {"size": 24, "sha256": SHA}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"v":1}', b"\xff"])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestInvalid):
        Manifest.parse(data)


@pytest.mark.parametrize("data", [b" " + manifest().to_bytes(), manifest().to_bytes() + b"\n"])
def test_any_form_but_the_canonical_one_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestInvalid, match="canonical"):
        Manifest.parse(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body["books"].update(rows=11), "11 rows are not 7 documents"),
        (lambda body: body["books"].update(documents=8), "sum of train and val"),
        (lambda body: body["books"].update(tokens=301), "sum of train and val"),
        (lambda body: body["books"]["train"].update(tokens=301), "sum of train and val"),
        (lambda body: body["books"]["dropped"].update(null=-1), "no count"),
        (lambda body: body["books"].update(chars=True), "no count"),
        (lambda body: body.update(key="f" * 64), "key is not that of"),
        (lambda body: body.update(dtype="uint32"), "does not fit"),
        (lambda body: body["tokenizer"].update(eot=600), "does not fit"),
        (lambda body: body.update(extra=1), "canonical"),
        (lambda body: body["files"]["train-00000.bin"].update(size=398), "cannot hold"),
        (lambda body: body["files"]["train-00000.idx"].update(size=40), "does not fit 4 documents"),
        (lambda body: body["files"]["train-00000.bin"].update(sha256="x"), "no sha256"),
        (lambda body: body["files"]["train-00001.row"].update(size=32), "does not fit 3 documents"),
        (lambda body: body["files"].pop("train-00000.idx"), "without a gap"),
        (lambda body: body["files"].pop("val-00000.row"), "beside .idx and .row"),
        (lambda body: [body["files"].pop(f"train-00000.{kind}") for kind in KINDS], "without a gap"),
        (lambda body: [body["files"].pop(f"val-00000.{kind}") for kind in KINDS], "files of val"),
        (lambda body: [body["files"].pop(f"train-00001.{kind}") for kind in KINDS], "the books say"),
        (lambda body: body["files"].update({"../x": {"size": 0, "sha256": SHA}}), "no data files"),
        (lambda body: body["files"].update({"train-x.bin": {"size": 0, "sha256": SHA}}), "no name of a data"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    body = json.loads(manifest().to_bytes())
    change(body)
    with pytest.raises(ManifestInvalid, match=words):
        Manifest.parse(canonical_json(body))


def test_sums_are_sorted_and_read_back() -> None:
    hashes = {"val-00000.bin": SHA, "manifest.json": SHA[::-1]}
    text = sums_text(hashes)
    assert text == f"{SHA[::-1]}  manifest.json\n{SHA}  val-00000.bin\n".encode()
    assert parse_sums(text) == hashes


@pytest.mark.parametrize(
    "data",
    [f"{SHA}  b\n{SHA}  a\n", f"{SHA}  a\n{SHA}  a\n", f"{SHA}  a", f"{SHA[1:]}  a\n", "a\n", f"{SHA} *a\n"],
)
def test_sums_in_any_other_form_are_refused(data: str) -> None:
    with pytest.raises(ManifestInvalid):
        parse_sums(data.encode())
