"""A dataset that is tokens already: packed as tokenized text is, and each flaw named with its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.cli.main import exit_code
from stoker.config.load import load_pipeline
from stoker.corpus.readers.parquet import preflight
from stoker.corpus.readers.table import Tokens
from stoker.corpus.readers.token_lists import decode_tokens
from stoker.shards.build import build_worker
from stoker.shards.tokenize.tokenizer import load_tokenizer
from support.audits import audit_of
from support.builds import Recorder, build_task, set_bytes, small_tokenizer
from support.pipelines import make_pipeline

EOT = 0
U16, U32 = pa.uint16(), pa.uint32()
KINDS = [pa.list_(U16), pa.list_(U32), pa.large_list(U32)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def rows(count: int = 400, seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = [[*rng.integers(1, 400, rng.integers(0, 300)).tolist(), EOT] for _ in range(count)]
    return [None if number % 37 == 5 else row for number, row in enumerate(made)]


def write(path: Path, column: Any, **others: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"tokens": column, **others})
    pq.write_table(table, path, row_group_size=90, write_page_checksum=True)
    return path


def built(home: Path, source: Path, tokenizer: Path, **changes: Any) -> tuple[dict[str, Any], Path]:
    about = {"text_column": "tokens", "tokens": True, "filters": {}, **changes}
    task = build_task(home, source, tokenizer, **about)
    build_worker._kept.clear()  # what a test of text used
    return build_worker.main(task, Recorder()), Path(task["target"])


def stored(target: Path, split: str) -> list[list[int]]:
    """The split's documents as its files hold them."""
    found: list[list[int]] = []
    for file in sorted(target.glob(f"{split}-*.bin")):
        ends = np.fromfile(file.with_suffix(".idx"), "<u8").tolist()
        found += [one.tolist() for one in np.split(np.fromfile(file, "<u2"), ends)[:-1]]
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lists_are_packed_as_documents_each_at_its_row(tmp_path: Path, tokenizer: Path, kind: Any) -> None:
    given = rows()
    result, target = built(tmp_path, write(tmp_path / "a.parquet", pa.array(given, kind)), tokenizer)
    books, kept = result["books"], [row for row in given if row is not None]
    assert (books["rows"], books["documents"], books["chars"]) == (400, len(kept), 0)
    assert (books["dropped"], books["tokens"]) == ({"null": 400 - len(kept)}, sum(map(len, kept)))
    train, val = stored(target, "train"), stored(target, "val")
    assert (len(train), len(val)) == (books["train"]["documents"], books["val"]["documents"])
    assert 20 < len(val) < 80
    numbers = [np.fromfile(file, "<u8") for file in sorted(target.glob("train-*.row"))]
    assert [given[row] for row in np.concatenate(numbers).tolist()] == train
    assert sorted(train + val) == sorted(kept)


def test_lists_of_one_length_and_any_batch_make_the_same_set(tmp_path: Path, tokenizer: Path) -> None:
    given = [[*row, EOT] for row in np.random.default_rng(2).integers(1, 400, (300, 31)).tolist()]
    source = write(tmp_path / "a.parquet", pa.array(given, pa.list_(U16, 32)))
    first, target = built(tmp_path / "one", source, tokenizer)
    _, again = built(tmp_path / "two", source, tokenizer, read_rows=7, every_s=0.0)
    assert first["books"]["documents"] == 300
    assert sorted(stored(target, "train") + stored(target, "val")) == sorted(given)
    assert set_bytes(again) == set_bytes(target)


FLAWS = {
    "an id beyond": (pa.list_(U32), 9_999, "an id beyond the tokenizer's"),
    "no end": (pa.list_(U16), 7, "end-of-text, 0, is not at its end"),
    "a null": (pa.list_(U16), None, "a null among its ids"),
}


@pytest.mark.parametrize(
    "column",
    [
        pa.ListArray.from_arrays([0, 2, 5], pa.array([9, 5, EOT, 6, 7, EOT], U16)[1:]),
        pa.array([[8, EOT], [5, EOT], [6, 7, EOT]], pa.list_(U16))[1:],
        pa.array([[8, EOT], [5, EOT], [6, 7, EOT]], pa.large_list(U32))[1:],
    ],
    ids=["numbers", "lists", "large lists"],
)
def test_a_part_of_an_array_is_read_from_its_own_begin(column: Any) -> None:
    found = decode_tokens(column, Tokens(500, EOT, "uint16"), 0, 0, "tokens")
    assert [np.asarray(each).tolist() for each in found] == [[5, EOT], [6, 7, EOT]]


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_bad_list_is_named_by_its_row_by_the_builder_and_by_each_later_look(
    tmp_path: Path, tokenizer: Path, flaw: str
) -> None:
    kind, last, words = FLAWS[flaw]
    given = rows()
    given[205] = [5, 6, EOT, last]
    source = write(tmp_path / "a.parquet", pa.array(given, kind))
    result, target = built(tmp_path, source, tokenizer)
    assert (result["status"], result["reason"], result["row_group"]) == ("bad", "bad_tokens", 2)
    assert "row 205, which begins" in result["detail"] and words in result["detail"]
    assert not target.exists()
    frozen = load_tokenizer(tokenizer)
    found = preflight(source, "tokens", tokens=Tokens(frozen.vocab_size, frozen.eot), decode=True)
    assert found is not None and found.fields() == {name: result[name] for name in found.fields()}
    assert preflight(source, "tokens", tokens=Tokens()) is None  # by its footer nothing is wrong


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.uint16(), pa.string()], ids=str)
def test_another_type_is_refused_by_the_footer(tmp_path: Path, kind: Any) -> None:
    values = {pa.uint16(): [1], pa.string(): ["a"]}.get(kind, [[1, 0]])
    found = preflight(write(tmp_path / "a.parquet", pa.array(values, kind)), "tokens", tokens=Tokens())
    assert found is not None and (found.reason, found.column) == ("column_type", "tokens")
    assert "not lists of uint16 or uint32" in found.detail


def test_a_pipeline_of_tokens_is_built_counted_and_audited_and_bad_files_set_aside(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_pipeline(
        tmp_path,
        dataset__tokens_column="tokens",
        dataset__filters={"languages": ["en"]},
        tokenizer={"file": str(tokenizer)},
    )
    languages = ["en" if number % 3 else "de" for number in range(400)]
    for number in range(2):
        column = pa.array(rows(seed=number), pa.list_(U16))
        write(data.source / f"{number}.parquet", column, language=languages)
    write(data.source / "bad.parquet", pa.array([[5, 6]], pa.list_(U16)), language=["en"])
    write(data.source / "wide.parquet", pa.array([[5, EOT]], pa.list_(pa.int64())), language=["en"])
    data.drain()
    assert data.states() == {
        **dict.fromkeys(("0.parquet", "1.parquet"), "released"),
        **dict.fromkeys(("bad.parquet", "wide.parquet"), "quarantined"),
    }
    reasons = {path: reason["reason"] for path, reason in data.reasons().items()}
    assert reasons == {"bad.parquet": "bad_tokens", "wide.parquet": "column_type"}
    books = data.sources()["0.parquet"].books
    assert books is not None and dict(books.dropped or ())["languages"] > 100
    assert audit_of(data.file, deep=True)["findings"] == []
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / data.file.name
    capsys.readouterr()
    assert exit_code(["config", "show", str(data.file)]) == 0
    again.write_text(capsys.readouterr().out)
    assert load_pipeline(again).dataset == data.pipeline.dataset
    assert exit_code(["config", "check", str(data.file)]) == 0, capsys.readouterr().err
    assert exit_code(["quarantine", "release", str(data.file), "bad.parquet"]) == 1
    assert "row 0, which begins [5, 6]: end-of-text" in capsys.readouterr().err
