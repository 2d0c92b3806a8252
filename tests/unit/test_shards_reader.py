"""Reading a set back: the documents that went in, in order, and nothing that is not whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from stoker.shards.build.build_worker import main
from stoker.shards.format.reader import ShardSet
from stoker.store.errors import DataError, StorageError
from support.builds import Recorder, build_task, small_tokenizer
from support.text import documents, write_parquet


def build(home: Path, texts: list[str | None]) -> tuple[Path, Path]:
    tokenizer = small_tokenizer(home / "tokenizer.json")
    parquet = write_parquet(home / "source.parquet", texts)
    task = build_task(home, parquet, tokenizer, filters={}, shard_tokens=5000)
    assert main(task, Recorder())["status"] == "published"
    return Path(task["target"]), tokenizer


def test_every_document_comes_back_with_its_end_of_text(tmp_path: Path) -> None:
    texts = documents(200)
    target, tokenizer = build(tmp_path, texts)
    decode = Tokenizer.from_file(str(tokenizer)).decode
    shards = ShardSet(target)
    found = []
    for split in ("train", "val"):
        for tokens in shards.documents(split):
            assert tokens[-1] == shards.manifest.eot
            found.append(decode(tokens[:-1].tolist(), skip_special_tokens=False))
    assert sorted(found) == sorted(text for text in texts if text is not None)


@pytest.mark.parametrize("read_rows", [1, 9, 1000])
def test_every_document_says_which_row_of_the_source_it_was(tmp_path: Path, read_rows: int) -> None:
    """Rows dropped for every reason, several row groups, several shards, both splits."""
    tokenizer = small_tokenizer(tmp_path / "tokenizer.json")
    texts = documents(400)
    parquet = write_parquet(tmp_path / "source.parquet", texts, row_group=64)
    filters = {"min_chars": 10, "max_chars": 900, "languages": ["en"], "at_least": {"language_score": 0.1}}
    task = build_task(
        tmp_path, parquet, tokenizer, filters=filters, shard_tokens=3000, read_rows=read_rows, val_ratio=0.2
    )
    done = main(task, Recorder())
    assert set(done["books"]["dropped"]) == {"null", "min_chars", "max_chars", "languages", "at_least"}
    decode = Tokenizer.from_file(str(tokenizer)).decode
    shards = ShardSet(Path(task["target"]))
    seen: list[int] = []
    for split in ("train", "val"):
        numbers = [row for part in shards.rows(split) for row in part.tolist()]
        for row, tokens in zip(numbers, shards.documents(split), strict=True):
            assert decode(tokens[:-1].tolist(), skip_special_tokens=False) == texts[row]
        assert numbers == sorted(numbers)
        seen += numbers
    assert len(list(shards.rows("train"))) > 3
    assert sorted(seen) == [
        row
        for row, one in enumerate(pq.read_table(parquet).to_pylist())
        if one["text"] is not None
        and 10 <= len(one["text"]) <= 900
        and one["language"] == "en"
        and (one["language_score"] or 0) >= 0.1
    ]


def test_an_empty_set_has_no_documents(tmp_path: Path) -> None:
    shards = ShardSet(build(tmp_path, [None])[0])
    assert [list(shards.documents(split)) for split in ("train", "val")] == [[], []]
    assert [len(tokens) for tokens, _ in shards.shards("train")] == [0]


def test_a_file_of_another_size_or_gone_is_not_opened(tmp_path: Path) -> None:
    target, _ = build(tmp_path, documents(50))
    path = target / "train-00000.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    with pytest.raises(DataError, match=r"train-00000\.bin"):
        ShardSet(target)
    path.unlink()
    with pytest.raises((StorageError, FileNotFoundError)):
        ShardSet(target)
