"""One file on its way, with an answer and a disk that do what a test says."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.fetch import landing as landing_module
from stoker.corpus.fetch.landing import PARTS, Landing, PartRecord
from stoker.corpus.fetch.transfer import Bandwidth, FileFetch, Stopped, TransferConfig
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import Answer, FetchFailed
from stoker.kit.loop import Backoff

DATA = [bytes([each]) * 1000 for each in range(4)]
WHOLE = b"".join(DATA)
FILE = RemoteFile.listed("a/b", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), None, "http://h/a/b")


class Scripted:
    """A caller whose one answer brings each piece, or does what stands in its place."""

    def __init__(self, *script: bytes | Callable[[], None], **headers: str) -> None:
        self.script, self.headers, self.asked = script, headers, (0, "")

    @contextlib.contextmanager
    def open(self, _url: str, offset: int, validator: str) -> Iterator[Any]:
        self.asked = offset, validator
        yield Answer(206 if offset else 200, {"etag": '"e"', **self.headers}, "http://h/a/b"), self.pieces()

    def pieces(self) -> Iterator[bytes]:
        for each in self.script:
            if callable(each):
                each()
            else:
                yield each


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "landing", "data", expected=False)


def on_its_way(landing: Landing, file: RemoteFile = FILE, **changes: Any) -> tuple[Any, list[dict[str, Any]]]:
    said: list[dict[str, Any]] = []

    def tell(kind: str, **fields: Any) -> None:
        said.append({"kind": kind, **fields})

    terms = TransferConfig(
        landing=landing,
        bandwidth=Bandwidth(None),
        tell=tell,
        **{
            "min_rate": 0,
            "read_s": 60.0,
            "floor": 0,
            "keep_files": 3,
            "keep_bytes": 1 << 20,
            **changes,
        },
    )
    return FileFetch(file, terms, Backoff(1.0, 2.0)), said


def full_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next call of that function of the system's fails as on a full disk, those after it go well."""
    call = getattr(os, name)

    def fail(*_: Any) -> None:
        monkeypatch.setattr(os, name, call)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, fail)


def test_a_file_comes_in_pieces_and_gets_its_name(landing: Landing) -> None:
    file, said = on_its_way(landing)
    done = file.attempt(Scripted(*DATA))
    assert (done.how, done.size, done.sha256) == ("fetched", len(WHOLE), FILE.sha256)
    assert (landing.root / "a/b").read_bytes() == WHOLE
    assert [each["kind"] for each in said] == ["start"] and list((landing.root / PARTS).iterdir()) == []


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_a_full_disk_ends_the_attempt_and_what_was_written_is_gone_on_with(
    call: str, landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = on_its_way(landing)
    with pytest.raises(FetchFailed, match="No space left") as failed:
        file.attempt(Scripted(DATA[0], lambda: full_once(monkeypatch, call), file.commit, *DATA[1:]))
    assert failed.value.kind == "disk_full"
    again = Scripted(*DATA[1:], **{"content-range": f"bytes 1000-3999/{len(WHOLE)}"})
    assert file.attempt(again).how == "fetched" and again.asked == (1000, '"e"')
    assert (landing.root / "a/b").read_bytes() == WHOLE


def test_what_is_claimed_is_what_a_commit_made_durable(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    durable, claim = os.fdatasync, Landing.write_part
    monkeypatch.setattr(os, "fdatasync", lambda number: (did.append("durable"), durable(number))[1])
    monkeypatch.setattr(
        Landing, "write_part", lambda self, record: (did.append("claim"), claim(self, record))[1]
    )
    file, said = on_its_way(landing)
    with pytest.raises(FetchFailed) as failed:
        file.attempt(Scripted(DATA[0], file.commit, DATA[1], **{"content-length": str(len(WHOLE))}))
    assert failed.value.kind == "short"
    assert [each["bytes"] for each in said if each["kind"] == "progress"] == [1000, 2000]
    assert did == ["durable", "claim"] * 2
    record = PartRecord.read(landing.record("a/b"))
    assert record is not None and record.offset == 2000
    assert record.prefix == hashlib.sha256(WHOLE[:2000]).hexdigest()


def test_an_old_claim_is_taken_back_before_other_bytes_grow_under_it(landing: Landing) -> None:
    old = PartRecord(
        dataset="data", path="a/b", offset=500, prefix="old", validator='"e"', sums=FILE.sum, mismatches=1
    )
    landing.write_part(old)  # as when a kill came between the part's leaving and its record
    claims: list[PartRecord | None] = []
    file, _ = on_its_way(landing)
    file.attempt(Scripted(lambda: claims.append(PartRecord.read(landing.record("a/b"))), *DATA))
    assert claims[0] is not None
    assert (claims[0].offset, claims[0].mismatches) == (0, 1)


def test_no_commit_claims_a_part_that_has_its_name_already(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = landing_module.move_durably
    file, _ = on_its_way(landing)
    commit = threading.Thread(target=file.commit)

    def move_while_another_commits(*paths: Path) -> None:
        commit.start()
        move(*paths)

    monkeypatch.setattr(landing_module, "move_durably", move_while_another_commits)
    file.attempt(Scripted(*DATA))
    commit.join()
    assert list((landing.root / PARTS).iterdir()) == []


@pytest.mark.parametrize("piece", [b"", bytes(1)], ids=["too few", "too many"])
def test_another_length_than_the_listings_never_lands(piece: bytes, landing: Landing) -> None:
    file, _ = on_its_way(landing)
    script = DATA[:-1] if not piece else [*DATA, piece]
    with pytest.raises(FetchFailed) as failed:
        file.attempt(Scripted(*script))
    assert failed.value.kind == ("length" if piece else "short")
    assert not (landing.root / "a").exists()


def test_a_stopped_file_ends_at_the_next_piece(landing: Landing) -> None:
    file, _ = on_its_way(landing)
    with pytest.raises(Stopped):
        file.attempt(Scripted(DATA[0], file.stop, *DATA[1:]))
    with pytest.raises(Stopped):
        file.attempt(Scripted(*DATA))
    file.forget()
    assert list((landing.root / PARTS).iterdir()) == []


def test_a_file_without_a_sum_is_never_gone_on_with_where_nothing_tells_its_content(landing: Landing) -> None:
    bare = RemoteFile.listed("a/b", None, None, None, "http://h/a/b")
    file, _ = on_its_way(landing, bare)
    with pytest.raises(FetchFailed):
        file.attempt(Scripted(DATA[0], file.commit, etag="", **{"content-length": str(len(WHOLE))}))
    file.close()
    again = Scripted(*DATA, etag="")
    file, _ = on_its_way(landing, bare)
    assert file.attempt(again).size == len(WHOLE) and again.asked[0] == 0


# What a process wrote and did not claim

LARGE = b"".join(bytes([each]) * (1 << 20) for each in range(3))
HALF = LARGE[: 3 << 19]
BIG = RemoteFile.listed("a/b", len(LARGE), hashlib.sha256(LARGE).hexdigest(), None, "http://h/a/b")


class Killed(BaseException):
    """What nobody catches."""


def die() -> None:
    raise Killed


def killed_at_half(landing: Landing, file: RemoteFile = BIG, half: bytes = HALF) -> None:
    """Leave what a kill leaves after so many bytes: written, and no commit."""
    on_the_way, _ = on_its_way(landing, file)
    with pytest.raises(Killed):
        on_the_way.attempt(Scripted(half, die, **{"content-length": str(len(LARGE))}))
    record = PartRecord.read(landing.record("a/b"))
    assert record is not None and record.offset == 0


def the_rest(offset: int) -> Scripted:
    told = f"bytes {offset}-{len(LARGE) - 1}/{len(LARGE)}"
    return Scripted(LARGE[offset:], **{"content-range": told, "content-length": str(len(LARGE) - offset)})


def test_what_a_killed_process_wrote_is_claimed_and_gone_on_with(landing: Landing) -> None:
    killed_at_half(landing)
    file, said = on_its_way(landing, BIG)
    again = the_rest(len(HALF))
    assert file.attempt(again).size == len(LARGE) and again.asked == (len(HALF), "")
    assert [each["offset"] for each in said if each["kind"] == "start"] == [len(HALF)]
    assert (landing.root / "a/b").read_bytes() == LARGE


def test_it_is_durable_before_it_is_told(landing: Landing) -> None:
    killed_at_half(landing)
    claims: list[PartRecord | None] = []
    file, _ = on_its_way(landing, BIG)
    again = the_rest(len(HALF))
    again.script = (lambda: claims.append(PartRecord.read(landing.record("a/b"))), *again.script)
    file.attempt(again)
    assert claims[0] is not None and claims[0].offset == len(HALF)
    assert claims[0].prefix == hashlib.sha256(HALF).hexdigest()


def test_without_a_sum_only_what_was_claimed_counts(landing: Landing) -> None:
    bare = RemoteFile.listed("a/b", None, None, None, "http://h/a/b")
    killed_at_half(landing, bare)
    file, _ = on_its_way(landing, bare)
    again = the_rest(0)
    assert file.attempt(again).size == len(LARGE) and again.asked[0] == 0


def test_the_sum_tells_when_what_was_written_is_wrong(landing: Landing) -> None:
    killed_at_half(landing, half=bytes(len(HALF)))
    file, said = on_its_way(landing, BIG)
    with pytest.raises(FetchFailed) as failed:
        file.attempt(the_rest(len(HALF)))
    assert failed.value.kind == "mismatch" and not (landing.root / "a").exists()
    assert [each["about"]["count"] for each in said if each["kind"] == "mismatch"] == [1]
    again = the_rest(0)
    assert file.attempt(again).size == len(LARGE) and again.asked == (0, "")


@pytest.mark.parametrize(("came", "expired"), [(HALF, 0), (bytes(9), 2)], ids=["progress", "none worth it"])
def test_progress_forgets_expired_addresses_but_never_wrong_content(
    came: bytes, expired: int, landing: Landing
) -> None:
    file, _ = on_its_way(landing, BIG)
    file.failures.update(expired=2, mismatch=2)
    with pytest.raises(FetchFailed):
        file.attempt(Scripted(came, **{"content-length": str(len(LARGE))}))
    assert (file.failures["expired"], file.failures["mismatch"], file.failures["short"]) == (expired, 2, 1)
