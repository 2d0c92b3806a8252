"""Bad parquet of every kind beside good files, through real daemons: each has its word, and nothing stirs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from tokenizers import Tokenizer

from stoker.shards.format.proof import prove_set
from support import bad_parquet as bad
from support.audits import audit_of
from support.parquet import flip_page, truncate, write_columns, write_fineweb
from support.pipelines import DataPipeline, make_pipeline

MIN_CHARS, VAL_RATIO = 20, 0.1  # as make_pipeline has them
ODD_NAMES = ("new\nline.parquet", "quo'te\"s.parquet", "🔥 ünï.parquet", "x" * 247 + ".parquet")


def write_bad(folder: Path) -> dict[str, str]:
    """One file of each kind; the reason each will be quarantined for."""
    text = pa.array(["a line of text that is long enough"] * 40)

    def good(name: str) -> Path:
        return write_columns(folder / name, text=text)

    (folder / "zero.parquet").write_bytes(b"")
    (folder / "words.parquet").write_text("not parquet at all")
    truncate(good("cut.parquet"))
    write_columns(folder / "empty.parquet", text=pa.array([], pa.string()))
    write_columns(folder / "schema.parquet", body=text)
    write_columns(folder / "numbers.parquet", text=pa.array([1, 2, 3]))
    write_columns(folder / "bytes.parquet", text=pa.array([b"fine text, and then"] * 30 + [b"\xff\xfe"]))
    pq.write_table(pa.Table.from_arrays([text, text], names=["text", "text"]), folder / "twice.parquet")
    bad.write_encrypted(folder / "locked.parquet", ["text"], plain_footer=False)
    bad.write_encrypted(folder / "half-locked.parquet", ["n"], plain_footer=True)
    bad.write_footer(folder / "beyond.parquet", b"\x15\x02", claimed=1 << 31)
    bomb = bad.group(bad.structs(1000, bad.CHUNK * 1000))
    groups = bad.structs(4000, bomb * 4000)
    bad.write_footer(folder / "bomb.parquet", bad.footer(bad.TEXT_SCHEMA, 4000, groups))
    flip_page(write_fineweb(folder / "00-page.parquet", 90, seed=7, row_group=30), row_group=2)
    return {
        "zero.parquet": "zero_bytes",
        "words.parquet": "not_parquet",
        "cut.parquet": "truncated",
        "empty.parquet": "no_rows",
        "schema.parquet": "missing_column",
        "numbers.parquet": "column_type",
        "bytes.parquet": "invalid_utf8",
        "twice.parquet": "ambiguous_column",
        "locked.parquet": "encrypted",
        "half-locked.parquet": "encrypted",
        "beyond.parquet": "footer_absurd",
        "bomb.parquet": "footer_absurd",
        "00-page.parquet": "page_corrupt",
    }


def fingerprint(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Content and modification time of every file."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


@dataclass
class Mixed:
    """Files of every kind, drained; what was in the source folder before, and what the loop said last."""

    data: DataPipeline
    reasons: dict[str, str]
    before: dict[Path, tuple[bytes, int]]
    said: str


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    data = make_pipeline(tmp_path_factory.mktemp("mixed"), shard__shard_tokens=5000)
    for number in range(2):
        write_fineweb(data.source / f"000-{number}.parquet", 120, seed=number, row_group=64)
    injected = pq.read_table(data.source / "000-0.parquet").to_pylist()
    injected[3]["text"] = "It says <|endoftext|> in its middle, and means the words, not the end of it."
    pq.write_table(pa.Table.from_pylist(injected), data.source / "000-0.parquet")
    shutil.copy(data.source / "000-1.parquet", data.source / "copy.parquet")
    for number, name in enumerate(ODD_NAMES):
        write_fineweb(data.source / name, 30, seed=10 + number)
    inside = data.source / "folder.parquet"  # as others write a data set of many files
    write_fineweb(inside / "part.parquet", 30, seed=20)
    (data.source / "empty folder.parquet").mkdir()
    write_columns(data.source / "nulls.parquet", text=pa.array([None, "a line of text, long enough"] * 9))
    reasons = write_bad(data.source)
    before = fingerprint(data.source)
    assert data.once("download_watchdog").returncode == 0
    ended = data.once("stage_shard")
    assert ended.returncode == 0, ended.stderr
    return Mixed(data, reasons, before, ended.stderr)


def test_every_kind_of_bad_file_is_named_and_the_good_ones_are_built(mixed: Mixed) -> None:
    data, reasons = mixed.data, mixed.reasons
    told = data.reasons()
    assert {path: each["reason"] for path, each in told.items()} == reasons
    assert all(each["detail"] for each in told.values())
    assert (told["00-page.parquet"]["row_group"], told["00-page.parquet"]["column"]) == (2, "text")
    assert told["bytes.parquet"]["detail"].startswith("rows 0 to 30: ")
    states = data.states()
    twins = ("000-1.parquet", "copy.parquet")
    assert sorted(states.pop(twin) for twin in twins) == ["duplicate", "released"]
    good = {"000-0.parquet", *ODD_NAMES, "folder.parquet/part.parquet", "nulls.parquet"}
    assert {path for path, state in states.items() if state == "released"} == good
    assert {path for path, state in states.items() if state == "quarantined"} == reasons.keys()
    books = data.sources()["nulls.parquet"].books
    assert books is not None
    assert (books.rows, books.documents, books.dropped) == (18, 9, (("null", 9),))
    for source in data.sources().values():
        if source.state == "released":
            proof = prove_set(data.pipeline.hot_layout.shard_set("prose", str(source.key)), key=source.key)
            assert (proof.verdict, proof.manifest_sha256) == ("proven", source.manifest_sha256)
            assert proof.manifest.books.to_mapping() == source.books.to_mapping()
    pin = data.pin()
    assert (pin.complete, len(pin.listing)) == (True, len(states) + 2)
    # The first file's footer is whole, but not its pages.
    assert pin.tokenizer_trained_on[0][0] == "000-0.parquet"
    assert fingerprint(data.source) == mixed.before
    assert not [*data.pipeline.hot_layout.parquet.iterdir(), *data.pipeline.hot_layout.building.iterdir()]
    assert f"{len(good) + 1} files built" in mixed.said and f"{len(reasons)} quarantined" in mixed.said
    events = data.events("stage_shard", "source_quarantined")
    assert {each["path"]: each["reason"] for each in events} == reasons
    assert len(events) == len(reasons)
    assert not data.events("stage_shard", "stage_failed"), "a worker died of what it should have told"
    report = audit_of(data.file, deep=True)
    assert report["balanced"], report["findings"]
    assert report["sources"]["quarantined"] == len(reasons)


# An independent recount: nothing of the project counts below; what lies on disk is read by its formats.


def recount(
    parquet: Path, tokenizer: Tokenizer, salt: int
) -> tuple[dict[str, list[list[int]]], Counter[str]]:
    """Each split's documents as ids with their end-of-text, and the dropped rows by reason, row by row."""
    documents: dict[str, list[list[int]]] = {"train": [], "val": []}
    dropped: Counter[str] = Counter()
    for text in pq.read_table(parquet, columns=["text"]).column("text").to_pylist():
        if text is None:
            dropped["null"] += 1
        elif len(text) < MIN_CHARS:
            dropped["min_chars"] += 1
        else:
            held_out = xxhash.xxh3_64_intdigest(text.encode(), salt) < int(VAL_RATIO * 2**64)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            documents["val" if held_out else "train"].append([*ids, 0])
    return documents, dropped


def stored(folder: Path, split: str) -> tuple[np.ndarray, list[int]]:
    """The split's tokens over all files, and where each document ends in its file."""
    tokens, lengths = [], []
    for file in sorted(folder.glob(f"{split}-*.bin")):
        tokens.append(np.fromfile(file, dtype="<u2"))
        ends = np.fromfile(file.with_suffix(".idx"), dtype="<u8")
        assert len(tokens[-1]) == (ends[-1] if len(ends) else 0)
        lengths += np.diff(ends, prepend=0).tolist()
    return np.concatenate(tokens), lengths


def test_every_row_is_counted_and_every_token_is_where_an_independent_reading_puts_it(mixed: Mixed) -> None:
    layout, source = mixed.data.pipeline.layout, mixed.data.source
    pin = json.loads(layout.dataset("prose").read_bytes())
    tokenizer = Tokenizer.from_file(str(layout.datasets / pin["tokenizer"]["file"]))
    tokenizer.encode_special_tokens = True  # text stays text
    assert tokenizer.token_to_id("<|endoftext|>") == pin["tokenizer"]["eot"] == 0
    by_source = {
        json.loads((folder / "manifest.json").read_bytes())["source"]["sha256"]: folder
        for folder in (mixed.data.pipeline.hot / "shards" / "prose").iterdir()
    }
    assert len(by_source) == 8
    for parquet in (file for file in source.rglob("*.parquet") if file.is_file()):
        folder = by_source.pop(hashlib.sha256(parquet.read_bytes()).hexdigest(), None)
        if folder is None:
            continue
        books = json.loads((folder / "manifest.json").read_bytes())["books"]
        documents, dropped = recount(parquet, tokenizer, pin["build"]["val_salt"])
        assert books["rows"] == pq.ParquetFile(parquet).metadata.num_rows
        assert books["dropped"] == dropped
        assert books["rows"] == books["documents"] + sum(dropped.values())
        for split, expected in documents.items():
            tokens, lengths = stored(folder, split)
            assert lengths == [len(document) for document in expected]
            assert tokens.tolist() == [token for document in expected for token in document]
            assert books[split] == {"documents": len(expected), "tokens": len(tokens)}
        for line in (folder / "SHA256SUMS").read_text().splitlines():
            digest, name = line.split("  ")
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert not by_source
