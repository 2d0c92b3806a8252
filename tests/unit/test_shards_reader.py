"""Reading a set back: the documents that went in, in order, and nothing that is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stoker.shards.build_worker import main
from stoker.shards.reader import ShardSet
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
