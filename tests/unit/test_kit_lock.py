"""Locks: one holder, who is named; nothing is ever stale."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker.kit.lock import Lock, read_contents, read_holder
from stoker.store.errors import LockHeld, StorageError
from support.waiting import LONG_S


def test_a_second_holder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "l.lock"
    with Lock.acquire(path, purpose="stage_shard", extra={"runtime": "/run/x"}) as lock:
        with pytest.raises(LockHeld, match=rf"stage_shard \(pid {os.getpid()}") as refused:
            Lock.acquire(path, purpose="command")
        assert refused.value.exit_code == 75
        lock.update({"metrics": "127.0.0.1:9812"})
        holder = read_holder(path)
        assert holder is not None and holder.pid == os.getpid() and holder.purpose == "stage_shard"
        assert holder.extra.items() >= {"runtime": "/run/x", "metrics": "127.0.0.1:9812"}.items()
    assert read_holder(path) is None
    assert read_contents(path).extra["runtime"] == "/run/x", "the last holder's words stay"


def test_a_holder_killed_with_9_leaves_no_stale_lock(tmp_path: Path) -> None:
    path = tmp_path / "l.lock"
    code = (
        "import sys, pathlib; from stoker.kit.lock import Lock\n"
        "lock = Lock.acquire(pathlib.Path(sys.argv[1]), purpose='train_supervisor')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(LockHeld, match=f"pid {holder.pid}"):
        Lock.acquire(path, purpose="other")
    holder.kill()
    holder.wait(LONG_S)
    Lock.acquire(path, purpose="other").release()
    holder.stdout.close()
    holder.stdin.close()


def test_a_lock_handed_to_a_child_stays_until_the_child_ends(tmp_path: Path) -> None:
    path = tmp_path / "l.lock"
    lock = Lock.acquire(path, purpose="supervisor")
    child = subprocess.Popen(["sleep", "1000"], pass_fds=(lock.fileno(),))
    lock.handed_over()
    assert read_holder(path) is not None
    child.kill()
    child.wait(LONG_S)
    assert read_holder(path) is None


def test_no_child_inherits_a_lock_by_accident(tmp_path: Path) -> None:
    with Lock.acquire(tmp_path / "l.lock", purpose="x") as lock:
        assert not os.get_inheritable(lock.fileno())


def test_a_looker_in_passing_does_not_make_a_daemon_refuse_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.kit.lock.LOOKER_PATIENCE_S", LONG_S)  # however late this looker leaves
    path = tmp_path / "l.lock"
    Lock.acquire(path, purpose="before").release()
    looker = os.open(path, os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    leave = threading.Timer(0.05, os.close, (looker,))
    leave.start()
    Lock.acquire(path, purpose="daemon").release()
    leave.join()


def test_a_lock_file_that_was_replaced_is_not_mistaken_for_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "l.lock"
    first = Lock.acquire(path, purpose="first")
    path.unlink()
    with Lock.acquire(path, purpose="second"):
        assert os.fstat(first.fileno()).st_ino != path.stat().st_ino
        with pytest.raises(LockHeld, match="second"):
            Lock.acquire(path, purpose="third")
    first.release()


def test_a_lock_file_replaced_between_open_and_lock_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.lock"
    flock, calls = fcntl.flock, []

    def replaced_meanwhile(descriptor: int, operation: int) -> None:
        if not calls:
            path.unlink()
            path.touch()
        calls.append(operation)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced_meanwhile)
    with Lock.acquire(path, purpose="x") as lock:
        assert os.path.samestat(os.fstat(lock.fileno()), path.stat())


def test_unreadable_contents_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "l.lock"
    path.write_bytes(b"\xff{half")
    assert read_contents(path).purpose == ""
    Lock.acquire(path, purpose="x").release()


def test_a_lock_that_cannot_be_made_says_where(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no/such"):
        Lock.acquire(tmp_path / "no/such" / "l.lock", purpose="x")
