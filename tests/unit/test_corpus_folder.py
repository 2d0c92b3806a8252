"""What a look at a source folder takes, refuses and cannot see."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from stoker.corpus.fetch.landing import Landing
from stoker.corpus.source.folder import FileSeen, PassedOver, Selection, look_through
from stoker.kit.lock import Lock, read_contents
from stoker.store.layout import HotLayout, WarmLayout


@pytest.mark.parametrize(
    ("pattern", "takes", "leaves"),
    [
        ("*.parquet", ["a.parquet", "x/y/a.parquet"], ["a.txt", "parquet"]),
        (
            "sample/*.parquet",
            ["sample/a.parquet"],
            ["a.parquet", "sample/x/a.parquet", "other/sample/a.parquet"],
        ),
        ("sample/**/*.parquet", ["sample/a.parquet", "sample/x/y/a.parquet"], ["a.parquet"]),
        ("00[0-3]?.parquet", ["0021.parquet", "x/0030.parquet"], ["0041.parquet", "002.parquet"]),
        ("a[!b].parquet", ["ac.parquet"], ["ab.parquet", "a/.parquet"]),
        ("we.rd+(x).parquet", ["we.rd+(x).parquet"], ["weird+(x).parquet"]),
    ],
)
def test_a_glob_means_what_an_operator_expects(pattern: str, takes: list[str], leaves: list[str]) -> None:
    selection = Selection([pattern])
    assert [path for path in takes + leaves if selection.takes(path)] == takes


def test_without_include_every_parquet_is_taken_and_excluded_hidden_and_unfinished_ones_never() -> None:
    selection = Selection([], ["skip/*"])
    paths = [
        "a.parquet",
        "d/b.parquet",
        "skip/c.parquet",
        ".d.parquet",
        ".git/e.parquet",
        "f.parquet.incomplete",
    ]
    assert [path for path in paths if selection.takes(path)] == ["a.parquet", "d/b.parquet"]


def test_what_a_pipeline_owns_is_named_and_never_listed(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    for number, place in enumerate((HotLayout(tmp_path / "hot"), WarmLayout(tmp_path / "warm"))):
        (place.owner_lock.parent / "parquet").mkdir(parents=True)
        Lock.acquire(place.owner_lock, purpose=f"pipeline {number}").release()
        (place.owner_lock.parent / "parquet" / "b.parquet").write_bytes(b"x")
    landing = Landing(tmp_path / "sub" / "landing", "prose", expected=False)
    landing.own("pipeline 2").release()
    (landing.root / "c.parquet").write_bytes(b"x")

    found = list(look_through(tmp_path, Selection()))
    assert [each.path for each in found if isinstance(each, FileSeen)] == ["a.parquet"]
    owned = {each.path: tmp_path / each.lock for each in found if isinstance(each, PassedOver) and each.lock}
    owners = {path: read_contents(lock).purpose for path, lock in owned.items()}
    assert owners == {"hot": "pipeline 0", "warm": "pipeline 1", "sub/landing": "pipeline 2"}
    assert [each.path for each in look_through(tmp_path / "hot", Selection())] == ["."]


def test_a_look_names_files_below_the_root_and_nothing_through_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "sub" / ".hidden", outside):
        folder.mkdir(parents=True)
    for file in (root / "a.parquet", root / "sub" / "b.parquet", root / "sub" / ".hidden" / "c.parquet"):
        file.write_bytes(b"x" * 7)
    (outside / "secret.parquet").write_bytes(b"s")
    (root / "link.parquet").symlink_to(outside / "secret.parquet")
    (root / "linked").symlink_to(outside)
    os.mkfifo(root / "pipe.parquet")
    (root / os.fsdecode(b"bad-\xff.parquet")).write_bytes(b"x")
    theirs = (
        "c.parquet.incomplete",
        ".cache/huggingface/download/sub/d.incomplete",
        "sub/.hidden/e.incomplete",
    )
    for name in theirs:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"half")
    (root / ".cache" / "huggingface" / "f.parquet").write_bytes(b"x")

    found = list(look_through(root, Selection()))

    files = {each.path: each for each in found if isinstance(each, FileSeen)}
    assert set(files) == {"a.parquet", "sub/b.parquet"}
    stat = (root / "a.parquet").stat()
    assert files["a.parquet"].etag == f"7-{stat.st_mtime_ns}-{stat.st_ino}"
    assert {each.path for each in found if isinstance(each, PassedOver) and each.kind == "unmanaged"} == set(
        theirs[:2]
    )
    refused = {
        each.path: each.reason for each in found if isinstance(each, PassedOver) and each.kind == "refused"
    }
    assert refused.keys() == {"link.parquet", "linked", "pipe.parquet", "bad-\\udcff.parquet"}
    assert "symbolic link" in refused["link.parquet"]
    assert "symbolic link" in refused["linked"]


def test_a_missing_root_is_an_error_and_a_folder_that_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        list(look_through(tmp_path / "nowhere", Selection()))
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.parquet").write_bytes(b"x")
    real = os.scandir

    def scandir(folder: int) -> object:
        if Path(f"/proc/self/fd/{folder}").readlink().name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    found = list(look_through(tmp_path, Selection()))
    assert PassedOver("unreadable", "locked", "Permission denied") in found
    assert [each.path for each in found if isinstance(each, FileSeen)] == ["a.parquet"]


def test_a_folder_that_becomes_a_link_between_two_glances_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    for folder in (root / "sub", secret):
        folder.mkdir(parents=True)
        (folder / "a.parquet").write_bytes(b"x")
    looked: list[int] = []

    def swap() -> None:
        looked.append(1)
        if len(looked) == 1:  # the root was just opened; its entries are listed after this
            monkeypatch.setattr(os, "scandir", listed_then_swapped)

    real = os.scandir

    def listed_then_swapped(folder: int) -> object:
        monkeypatch.setattr(os, "scandir", real)
        entries = list(real(folder))
        assert all(entry.is_dir(follow_symlinks=False) for entry in entries)
        (root / "sub").rename(tmp_path / "away")
        (root / "sub").symlink_to(secret)
        return contextlib.nullcontext(entries)

    found = list(look_through(root, Selection(), swap))
    assert [each.kind for each in found if isinstance(each, PassedOver)] == ["refused"]
    assert "symbolic link" in found[0].reason  # type: ignore[union-attr]
