"""Commits in a thread: one at a time, data before the record, and no failure that goes unheard."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker.shards.build.commit
from stoker.shards.build.build_worker import main
from stoker.shards.build.commit import PROGRESS, Committer, Progress, recover
from stoker.shards.build.shard_writer import GrowingSet
from stoker.store.errors import StorageError
from stoker.store.record import read_record
from support.books import books_of
from support.builds import Recorder, build_task, small_source, small_tokenizer
from support.waiting import LONG_S

KEY, ORIGIN = "a" * 64, (1, 2, 3)


def grown(directory: Path, documents: int) -> tuple[GrowingSet, Progress]:
    growing = GrowingSet(directory, "uint16", 1000, {})
    growing.splits["train"].append(
        np.zeros(3 * documents, "<u2"), np.full(documents, 3), np.arange(documents)
    )
    books = books_of(3 * documents, documents=documents, rows=documents)
    return growing, Progress(KEY, ORIGIN, 0, documents, growing.lengths(), books.to_mapping())


def test_a_commit_that_fails_ends_the_build_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, body: Any) -> None:
        raise StorageError(f"cannot write {path}", 28)

    monkeypatch.setattr(stoker.shards.build.commit, "write_record", full)
    task = build_task(
        tmp_path, small_source(tmp_path, 200), small_tokenizer(tmp_path / "t.json"), every_s=0.0
    )
    with pytest.raises(StorageError) as caught:
        main(task, Recorder())
    assert caught.value.errno == 28
    assert not Path(task["target"]).exists()


def test_a_second_commit_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    write = stoker.shards.build.commit.write_record
    order: list[int] = []

    def slow(path: Path, body: Any) -> None:
        order.append(body["row"])
        if len(order) == 1:
            inside.set()
            assert go_on.wait(LONG_S)
        write(path, body)

    monkeypatch.setattr(stoker.shards.build.commit, "write_record", slow)
    growing, progress = grown(tmp_path, 5)
    with Committer(tmp_path, Recorder(), lambda path, length: None) as committer:
        committer.start(growing.unsettled(), progress)
        assert inside.wait(LONG_S)
        assert committer.busy
        assert not (tmp_path / PROGRESS).exists()
        go_on.set()
        committer.start([], Progress(**{**vars(progress), "row": 9}))
        committer.wait()
    assert order == [5, 9]
    assert read_record(tmp_path / PROGRESS)["row"] == 9


def test_recovery_goes_on_from_the_commit_and_cuts_what_is_beyond(tmp_path: Path) -> None:
    growing, progress = grown(tmp_path, 5)
    with Committer(tmp_path, Recorder(), lambda path, length: None) as committer:
        committer.start(growing.unsettled(), progress)
        committer.wait()
    growing.splits["train"].append(np.ones(7, "<u2"), np.array([7]), np.array([9]))
    (tmp_path / "train-00001.bin").write_bytes(b"x")
    (tmp_path / "manifest.json").write_bytes(b"x")
    found = recover(tmp_path, KEY, ORIGIN)
    assert (found.row_group, found.row, found.files) == (0, 5, progress.files)
    assert {
        path.name: path.stat().st_size for path in tmp_path.iterdir() if path.name != PROGRESS
    } == progress.files


@pytest.mark.parametrize(
    "reason", ["shorter", "shorter rows", "missing", "another key", "another parquet", "damaged", "none"]
)
def test_recovery_starts_over_where_the_commit_cannot_be_relied_on(tmp_path: Path, reason: str) -> None:
    growing, progress = grown(tmp_path, 5)
    with Committer(tmp_path, Recorder(), lambda path, length: None) as committer:
        committer.start(growing.unsettled(), progress)
        committer.wait()
    tokens, record = tmp_path / "train-00000.bin", tmp_path / PROGRESS
    if reason == "shorter":
        tokens.write_bytes(tokens.read_bytes()[:-1])
    elif reason == "shorter rows":
        rows = tmp_path / "train-00000.row"
        rows.write_bytes(rows.read_bytes()[:-8])
    elif reason == "missing":
        tokens.unlink()
    elif reason == "damaged":
        record.write_bytes(record.read_bytes().replace(b'"row":5', b'"row":6'))
    elif reason == "none":
        record.unlink()
    key = "b" * 64 if reason == "another key" else KEY
    origin = (9, 2, 3) if reason == "another parquet" else ORIGIN
    found = recover(tmp_path, key, origin)
    assert (found.row_group, found.row, found.files, found.books) == (0, 0, None, None)
    assert list(tmp_path.iterdir()) == []
