"""Files are read back behind whoever writes or reads them, and nothing is read before it is finished with."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import xxhash

import stoker.shards.build.readback
from stoker.shards.build.readback import BUFFER_BYTES, Trail
from stoker.store.direct import DirectReader
from stoker.store.errors import StorageError
from support.builds import Recorder
from support.waiting import LONG_S

DATA = bytes(range(251)) * 40_000  # some 10 MB, of no block's size


@pytest.fixture
def trail() -> Iterator[Trail]:
    with closing(Trail(Recorder())) as made:
        yield made


def test_a_file_is_hashed_whole_however_it_was_advanced(tmp_path: Path, trail: Trail) -> None:
    for name, steps in (("none", []), ("some", [1, 3_000_001, 3_000_000, 9_999_999]), ("all", [len(DATA)])):
        path = tmp_path / name
        path.write_bytes(DATA)
        for step in steps:
            trail.advance(path, step)
        found = trail.finish(path).result(LONG_S)
        assert (found.sha256, found.size) == (hashlib.sha256(DATA).hexdigest(), len(DATA))
        assert found.xxh3 == xxhash.xxh3_128_hexdigest(DATA)


def test_an_empty_file_has_a_hash(tmp_path: Path, trail: Trail) -> None:
    (tmp_path / "empty").touch()
    found = trail.finish(tmp_path / "empty").result(LONG_S)
    assert (found.sha256, found.size) == (hashlib.sha256().hexdigest(), 0)


def test_a_growing_file_is_read_back_up_to_what_was_given_up_and_the_rest_at_the_end(
    tmp_path: Path, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    chunks = DirectReader.chunks

    def told(self: DirectReader, buffer: memoryview, end: int | None = None) -> Iterator[memoryview]:
        asked.append(end)
        yield from chunks(self, buffer, end)
        caught_up.set()

    caught_up = threading.Event()
    monkeypatch.setattr(DirectReader, "chunks", told)
    path = tmp_path / "growing"
    with path.open("wb") as file:
        file.write(DATA[:5_000_001])
        file.flush()
        os.fdatasync(file.fileno())
        trail.advance(path, 5_000_001)
        if not _is_cached(path):
            assert caught_up.wait(LONG_S)
        file.write(DATA[5_000_001:])
        file.flush()
        os.fdatasync(file.fileno())
    found = trail.finish(path).result(LONG_S)
    assert found.sha256 == hashlib.sha256(DATA).hexdigest()
    assert asked[-1] is None
    if not found.cached:
        assert asked[0] == 5_000_001


def _is_cached(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return DirectReader(descriptor).cached
    finally:
        os.close(descriptor)


def test_little_is_waited_for_until_it_is_worth_reading(tmp_path: Path, trail: Trail) -> None:
    path = tmp_path / "missing"
    trail.advance(path, BUFFER_BYTES - 1)  # nobody looked
    path.write_bytes(DATA)
    assert trail.finish(path).result(LONG_S).size == len(DATA)


def _missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()


def _unreadable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(stoker.shards.build.readback.DirectReader, "chunks", fail)


@pytest.mark.parametrize(("spoil", "kind"), [(_missing, FileNotFoundError), (_unreadable, StorageError)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_fails_on_the_way_is_told_at_the_end(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    trail: Trail,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    kind: type[Exception],
    when: str,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    if when == "before":
        spoil(path, monkeypatch)
        trail.advance(path, len(DATA))
    elif kind is FileNotFoundError:
        spoil(path, monkeypatch)
    else:
        trail.advance(path, BUFFER_BYTES)
        spoil(path, monkeypatch)
    with pytest.raises(kind):
        trail.finish(path).result(LONG_S)


def test_closing_does_not_wait_for_a_long_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    read: list[int] = []

    def endless(self: DirectReader, buffer: memoryview, end: int | None = None) -> Iterator[memoryview]:
        for _ in range(10**9):
            read.append(len(buffer))
            inside.set()
            assert go_on.wait(LONG_S)
            yield buffer

    monkeypatch.setattr(DirectReader, "chunks", endless)
    path = tmp_path / "file"
    path.write_bytes(DATA)
    trail = Trail(Recorder())
    trail.finish(path)
    assert inside.wait(LONG_S)
    closer = threading.Thread(target=trail.close)
    closer.start()
    while not trail._stopped.is_set():
        pass
    go_on.set()
    closer.join(LONG_S)
    assert not closer.is_alive()
    assert len(read) < 3
