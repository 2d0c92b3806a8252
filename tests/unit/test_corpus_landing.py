"""Where fetched files land: what is claimed of them, and what becomes of wrong content."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.fetch import landing_evidence
from stoker.corpus.fetch.landing import EVIDENCE, PARTS, Landing, PartRecord
from stoker.corpus.fetch.landing_evidence import keep_evidence, sweep_evidence
from stoker.corpus.fetch.part_content import Content, PartFile, look_at_landed
from stoker.corpus.http.remote_file import RemoteFile
from stoker.store.errors import StorageError, UnavailableError
from stoker.store.names import PathEscapes

RECORD = PartRecord("data", "a/b", offset=5, prefix="p", validator='"e"', total=9)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "landing", "data", expected=False)


def test_what_is_claimed_is_read_back_and_only_that_counts(landing: Landing) -> None:
    landing.write_part(RECORD)
    assert landing.read_part("a/b") == RECORD and landing.read_part("a/c") is None
    landing.record("a/b").write_text("{}")
    assert landing.read_part("a/b") is None


def test_what_no_record_speaks_of_is_swept_and_what_one_speaks_of_stays(landing: Landing) -> None:
    landing.part("a/b").write_bytes(b"12345")
    landing.write_part(RECORD)
    landing.part("x").write_bytes(b"of nobody")
    landing.record("y").write_text("no record")
    landing.write_part(replace(RECORD, path="z"))
    landing.record("z").rename(landing.record("elsewhere"))
    assert landing.unfinished() == [RECORD]
    assert sorted(landing.root.rglob("*.*")) == sorted(
        [landing.root / PARTS, landing.part("a/b"), landing.record("a/b")]
    )


def test_a_whole_file_gets_its_name_and_its_folders_go_with_it(landing: Landing) -> None:
    for path in ("a/b/c", "a/d"):
        landing.part(path).write_bytes(b"12345")
        landing.write_part(replace(RECORD, path=path))
        landing.publish(path)
    assert (landing.root / "a/b/c").read_bytes() == b"12345"
    assert list((landing.root / PARTS).iterdir()) == []
    landing.remove("a/b/c")
    landing.remove("a/b/c")
    assert [each.name for each in (landing.root / "a").iterdir()] == ["d"]
    with pytest.raises(PathEscapes):
        landing.target("../x")


def test_another_directory_in_its_place_is_noticed(landing: Landing, tmp_path: Path) -> None:
    landing.insist()
    landing.root.rename(tmp_path / "away")
    with pytest.raises(UnavailableError, match="mount"):
        landing.insist()
    landing.root.mkdir()
    with pytest.raises(UnavailableError, match="another directory"):
        landing.insist()
    with pytest.raises(UnavailableError, match="mount"):
        landing.write_part(RECORD)


def test_an_absent_landing_is_made_only_where_nothing_landed_yet(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="mkdir"):
        Landing(tmp_path / "new", "data", expected=True)
    Landing(tmp_path / "new", "data", expected=False)
    Landing(tmp_path / "new", "data", expected=True)


def test_a_part_is_cut_to_its_claim_and_written_from_there(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"0123456789")
    part = PartFile(tmp_path / "part", 4)
    part.append(b"ab")
    part.append(memoryview(b"cd"))
    part.make_durable()
    assert (tmp_path / "part").read_bytes() == b"0123abcd"
    part.restart()
    part.append(b"x")
    part.close()
    assert (tmp_path / "part").read_bytes() == b"x"
    with pytest.raises(UnavailableError):
        PartFile(tmp_path / "no" / "part", 0)
    (tmp_path / "link").symlink_to(tmp_path / "part")
    with pytest.raises(OSError) as refused:
        PartFile(tmp_path / "link", 0)
    assert refused.value.errno == errno.ELOOP


# sha256sum and `git hash-object` of "hello\n".
SHA256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
GIT = "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.parametrize(
    ("sums", "right"),
    [
        ({}, True),
        ({"sha256": SHA256}, True),
        ({"git": GIT}, True),
        ({"sha256": SHA256[::-1]}, False),
        ({"git": GIT[::-1]}, False),
        ({"sha256": SHA256, "git": GIT[::-1]}, False),
    ],
)
def test_the_sums_of_content(sums: dict[str, str], right: bool, tmp_path: Path) -> None:
    file = RemoteFile("f", "http://h/f", size=6, **sums)  # type: ignore[arg-type]
    content = Content(file)
    content.add(b"hel")
    content.add(bytearray(b"lo\n"))
    assert (content.size, content.sha256) == (6, SHA256)
    assert (content.mismatch(file) is None) is right
    (tmp_path / "f").write_bytes(b"hello\n")
    landed = look_at_landed(file, tmp_path / "f")
    assert landed is not None and landed.sha256 == SHA256
    # Of two sums the stronger decides about what lies there already.
    assert (landed.mismatch is None) is (right or sums.get("sha256") == SHA256)


def test_what_lies_there_is_looked_at_and_never_followed(tmp_path: Path) -> None:
    file = RemoteFile("f", "http://h/f", size=7)
    assert look_at_landed(file, tmp_path / "f") is None
    assert look_at_landed(file, tmp_path / "no" / "f") is None
    (tmp_path / "f").write_bytes(b"hello\n")
    read: list[int] = []
    landed = look_at_landed(file, tmp_path / "f", read.append)
    assert landed is not None and landed.mismatch == ("7 bytes", "6 bytes")
    assert read == [], "of another size it is the wrong one without being read"
    (tmp_path / "link").symlink_to(tmp_path / "f")
    with pytest.raises(StorageError, match="not a regular file"):
        look_at_landed(file, tmp_path / "link")


def test_evidence_is_kept_within_its_budget_whoever_comes_at_once(landing: Landing) -> None:
    failed: list[BaseException] = []

    def keep(hand: int) -> None:
        try:
            for number in range(15):
                bad = landing.part(f"{hand}-{number}")
                bad.write_bytes(bytes(10))
                keep_evidence(landing, bad, f"{hand}-{number}", {}, most_files=2, most_bytes=1 << 20)
                assert not bad.exists()
        except BaseException as error:
            failed.append(error)

    hands = [threading.Thread(target=keep, args=(hand,)) for hand in range(4)]
    for each in hands:
        each.start()
    for each in hands:
        each.join()
    assert not failed
    assert len(list((landing.root / EVIDENCE).iterdir())) == 2


def test_content_larger_than_the_budget_is_not_kept(landing: Landing) -> None:
    bad = landing.part("big")
    bad.write_bytes(bytes(10))
    assert keep_evidence(landing, bad, "big", {}, most_files=2, most_bytes=9) == ""
    assert not bad.exists() and not (landing.root / EVIDENCE).exists()


def test_evidence_whose_content_never_came_is_swept(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_evidence(landing)  # nothing there is no error
    bad = landing.part("bad")
    bad.write_bytes(bytes(10))
    keep_evidence(landing, bad, "bad", {}, most_files=3, most_bytes=1 << 20)
    (kept,) = (landing.root / EVIDENCE).iterdir()
    bad.write_bytes(bytes(10))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(landing_evidence, "move_durably", interrupt)
        keep_evidence(landing, bad, "bad", {}, most_files=3, most_bytes=1 << 20)
    assert len(list((landing.root / EVIDENCE).iterdir())) == 2
    sweep_evidence(landing)
    assert list((landing.root / EVIDENCE).iterdir()) == [kept] and bad.exists()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
