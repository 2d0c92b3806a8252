"""Atomic writes, publishing, names, errors and hashes: what the rest of the house stands on."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.store import errors
from stoker.store.direct import HASH_BUFFER_BYTES, hash_file
from stoker.store.errors import StorageError
from stoker.store.files import (
    PathEscapes,
    canonical_json,
    inside,
    make_dir,
    move_durably,
    publish_dir,
    remove_tree,
    sweep_temporaries,
    temporary_beside,
    unlink_durably,
    write_atomic,
)
from stoker.store.layout import record_name
from stoker.store.record import new_id


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def tight_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_canonical_json_has_one_form_and_refuses_what_json_has_no_word_for() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"loss": float("nan")})


@pytest.mark.usefixtures("tight_umask")
def test_modes_are_the_ones_asked_for_whatever_the_umask(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"1")
    make_dir(tmp_path / "d" / "e", 0o2770)
    assert mode(tmp_path / "a") == 0o640
    assert mode(tmp_path / "d") == 0o750
    assert mode(tmp_path / "d" / "e") == 0o2770


def test_a_file_system_that_takes_no_directories_is_told_with_the_path() -> None:
    with pytest.raises(FileNotFoundError, match="/proc/nothing"):
        make_dir(Path("/proc/nothing/below"))


def test_a_failed_write_leaves_the_old_content_and_no_temporary(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match=str(tmp_path / "a")) as failure:
            write_atomic(tmp_path / "a", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failure.value.errno == errno.EFBIG
    assert failure.value.exit_code == 74
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_leaves_the_old_content_and_says_what_to_do(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "stoker-test", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets even root mount nothing")
    try:
        write_atomic(tmp_path / "a", b"old")
        with pytest.raises(StorageError, match="free space") as failure:
            write_atomic(tmp_path / "a", bytes(200_000))
        assert failure.value.errno == errno.ENOSPC
        assert os.listdir(tmp_path) == ["a"]
        assert (tmp_path / "a").read_bytes() == b"old"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_only_the_temporaries_of_the_dead_are_swept(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    left = tmp_path / f".tmp-a.json-{dead.pid}-0123abcd"
    living = tmp_path / f".tmp-a.json-{os.getppid()}-0123abcd"
    other = tmp_path / ".tmp-step-1"
    for path in (left, living, other, tmp_path / "a.json"):
        path.write_bytes(b"")
    assert sweep_temporaries(tmp_path) == 1
    assert sorted(os.listdir(tmp_path)) == sorted([living.name, other.name, "a.json"])


def test_a_temporary_of_a_long_name_still_fits_a_directory_entry(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("n" * 250), b"1")
    assert len(temporary_beside(tmp_path / ("n" * 250)).name) < 200


def test_publishing_and_moving_refuse_a_target_that_exists(tmp_path: Path) -> None:
    for name in ("new", "there"):
        make_dir(tmp_path / name)
    (tmp_path / "new" / "file").write_bytes(b"1")
    with pytest.raises(FileExistsError):
        publish_dir(tmp_path / "new", tmp_path / "there")
    with pytest.raises(FileExistsError):
        move_durably(tmp_path / "new", tmp_path / "there")
    assert (tmp_path / "new" / "file").exists()
    publish_dir(tmp_path / "new", tmp_path / "published")
    assert (tmp_path / "published" / "file").read_bytes() == b"1"


def test_taking_away_what_is_gone_already_is_no_error(tmp_path: Path) -> None:
    unlink_durably(tmp_path / "nothing")
    remove_tree(tmp_path / "nothing")


def test_making_a_directory_where_a_file_is_fails(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_dir(tmp_path / "a")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, HASH_BUFFER_BYTES, HASH_BUFFER_BYTES * 2 + 777])
def test_a_hash_is_right_at_every_size_past_the_cache_and_through_it(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    seen: list[int] = []
    for past_cache in (True, False):
        found = hash_file(tmp_path / "a", past_cache=past_cache, progress=seen.append)
        assert (found.sha256, found.size) == (hashlib.sha256(content).hexdigest(), size)
    assert hash_file(tmp_path / "a", past_cache=False).cached
    assert (seen[-1] if size else 0) == size


def test_where_direct_reading_is_refused_the_hash_says_that_it_is_cached(tmp_path: Path) -> None:
    assert hash_file(Path("/proc/self/cmdline")).cached  # procfs knows no O_DIRECT


def test_what_was_corrupted_on_disk_behind_the_cache_is_hashed_as_the_disk_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a" * 8192)
    before = hash_file(path)
    if before.cached:
        pytest.skip("this file system refuses O_DIRECT")
    path.write_bytes(b"b" * 8192)
    assert hash_file(path).sha256 == hashlib.sha256(b"b" * 8192).hexdigest()


def test_reading_what_is_no_file_is_a_storage_error_and_what_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        hash_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        hash_file(tmp_path / "nothing")


def test_record_names_are_safe_short_readable_and_distinct() -> None:
    name = record_name("fineweb", "sample/350BT/000_00000.parquet")
    assert name.startswith("000_00000-")
    assert len(name) == len("000_00000-") + 12
    assert record_name("other", "sample/350BT/000_00000.parquet") != name
    for path in ("x" * 300 + ".parquet", "../../etc/passwd", ".tmp-x", "", "ä/ö ü.parquet", "a\udcffb"):
        made = record_name("set", path)
        assert len(made) <= 93
        assert "/" not in made
        assert not made.startswith(".")


@pytest.mark.parametrize("relative", ["/etc/passwd", "../up", "a/../../up", "", ".", "a\0b"])
def test_a_path_that_leaves_its_directory_is_refused(relative: str) -> None:
    with pytest.raises(PathEscapes) as refusal:
        inside(Path("/root"), relative)
    assert refusal.value.exit_code == 65


def test_a_path_inside_is_joined() -> None:
    assert inside(Path("/root"), "a/b..c.bin") == Path("/root/a/b..c.bin")


def test_ids_are_distinct_and_sort_by_time() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert min(ids)[:8].isdigit()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.StokerError, 70),
        (errors.Transient, 75),
        (errors.UsageError, 64),
        (errors.DataError, 65),
        (errors.UnavailableError, 69),
        (errors.StorageError, 74),
        (errors.ConfigError, 78),
        (errors.LockHeld, 75),
    ],
)
def test_every_error_has_the_exit_code_of_its_kind(kind: type[errors.StokerError], code: int) -> None:
    assert kind.exit_code == code
    assert str(kind("what, where, what to do")) == "what, where, what to do"


def test_the_store_imports_nothing_beyond_the_standard_library() -> None:
    script = (
        "import sys, stoker.store.files, stoker.store.log, stoker.store.requests\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "known = set(sys.stdlib_module_names) | {'stoker', '__main__'}\n"
        "print(sorted(n for n in names - known if getattr(sys.modules.get(n), '__file__', None)))"
    )
    clean = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    loaded = [name for name in eval(clean.stdout) if not name.startswith(("_", "sitecustomize"))]
    assert loaded == []


def test_two_workers_may_make_one_directory_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def another_is_quicker(path: Path, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if Path(path).name == "shards":
            mkdir(Path(path) / "prose")

    monkeypatch.setattr(os, "mkdir", another_is_quicker)
    make_dir(tmp_path / "shards" / "prose")
    assert (tmp_path / "shards" / "prose").is_dir()
