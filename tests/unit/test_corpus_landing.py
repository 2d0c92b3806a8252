"""Where fetched files land: what is claimed of them, and what becomes of wrong content."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.fetch.landing import CONTENT, EVIDENCE, PARTS, Landing, PartRecord
from stoker.corpus.fetch.part import Content, look_at_landed
from stoker.corpus.http.remote_file import RemoteFile
from stoker.store.errors import StorageError, UnavailableError
from stoker.store.files import PathEscapes
from stoker.store.record import read_record

RECORD = PartRecord(dataset="data", path="a/b", offset=5, prefix="p", validator='"e"', total=9)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "landing", "data", expected=False)


def test_what_is_claimed_is_read_back_and_only_that_counts(landing: Landing) -> None:
    landing.write_part(RECORD)
    assert PartRecord.read(landing.record("a/b")) == RECORD
    assert PartRecord.read(landing.record("a/c")) is None
    landing.record("a/b").write_text("{}")
    assert PartRecord.read(landing.record("a/b")) is None


def test_what_no_record_speaks_of_is_swept_and_what_one_speaks_of_stays(landing: Landing) -> None:
    landing.part("a/b").write_bytes(b"12345")
    landing.write_part(RECORD)
    landing.part("x").write_bytes(b"of nobody")
    landing.record("y").write_text("no record")
    landing.write_part(replace(RECORD, path="z"))
    landing.record("z").rename(landing.record("elsewhere"))
    landing.sweep()
    assert sorted(landing.root.rglob("*.*")) == sorted(
        [landing.root / PARTS, landing.part("a/b"), landing.record("a/b")]
    )


def test_evidence_that_a_kill_left_without_its_content_is_swept(landing: Landing) -> None:
    for name, files in (("whole", ("reason.json", CONTENT)), ("cut off", ("reason.json",))):
        (landing.root / EVIDENCE / name).mkdir(parents=True)
        for file in files:
            (landing.root / EVIDENCE / name / file).write_bytes(b"x")
    landing.sweep()
    assert [place.name for place in (landing.root / EVIDENCE).iterdir()] == ["whole"]


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
    ],
)
def test_the_sums_of_content(sums: dict[str, str], right: bool, tmp_path: Path) -> None:
    file = RemoteFile.listed("f", 6, sums.get("sha256"), sums.get("git"), "http://h/f")
    content = Content(file)
    content.add(b"hel")
    content.add(b"lo\n")
    assert (content.size, content.sha256) == (6, SHA256)
    assert (content.mismatch() is None) is right
    (tmp_path / "f").write_bytes(b"hello\n")
    landed = look_at_landed(file, tmp_path / "f")
    assert landed is not None and landed[0].sha256 == SHA256
    assert (landed[1] is None) is right


def test_what_lies_there_is_looked_at_and_never_followed(tmp_path: Path) -> None:
    file = RemoteFile.listed("f", 7, None, None, "http://h/f")
    assert look_at_landed(file, tmp_path / "f") is None
    assert look_at_landed(file, tmp_path / "no" / "f") is None
    (tmp_path / "f").write_bytes(b"hello\n")
    read: list[int] = []
    landed = look_at_landed(file, tmp_path / "f", read.append)
    assert landed is not None and landed[1] == ("7 bytes", "6 bytes")
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
                landing.keep_evidence(bad, f"{hand}-{number}", {}, most_files=2, most_bytes=1 << 20)
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


@pytest.mark.parametrize(
    ("most_files", "most_bytes", "left"), [(3, 1 << 20, "abc"), (2, 1 << 20, "bc"), (3, 25_000, "bc")]
)
def test_the_oldest_evidence_goes_until_the_rest_is_within_its_budget(
    most_files: int, most_bytes: int, left: str, landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        monkeypatch.setattr("stoker.corpus.fetch.landing.new_id", lambda now=name: now)
        bad = landing.part(name)
        bad.write_bytes(bytes(10_000))
        landing.keep_evidence(bad, name, {}, most_files=most_files, most_bytes=most_bytes)
    kept = [read_record(place / "reason.json")["path"] for place in (landing.root / EVIDENCE).iterdir()]
    assert sorted(kept) == list(left)


def test_content_larger_than_the_budget_is_not_kept(landing: Landing) -> None:
    bad = landing.part("big")
    bad.write_bytes(bytes(10))
    assert landing.keep_evidence(bad, "big", {}, most_files=2, most_bytes=9) == ""
    assert not bad.exists() and not (landing.root / EVIDENCE).exists()
