"""Files that others brought: hashed by a few workers that give way, receipted, and proven again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records.receipts import write_receipt
from stoker.kit.process import children_tree
from stoker.kit.workers.child import NICE
from support.downloads import stoker_command
from support.pipelines import DataPipeline, make_pipeline
from support.processes import wait_gone
from support.terminal import run_on_terminal
from support.waiting import LONG_S, wait_until

WATCHDOG, HASHER = "download_watchdog", b"hash_worker"
FILES, AT_ONCE = 12, 2
LARGE = 1 << 30  # sparse, so that it takes no room, and half a second or more to hash
SOME = 64 << 20
IO_IDLE, IOPRIO_GET = 3, {"x86_64": 252, "aarch64": 31}


@pytest.fixture
def data(tmp_path: Path) -> DataPipeline:
    """A folder that another client filled, and where it has not finished all."""
    data = make_pipeline(tmp_path, download__files_at_once=AT_ONCE)
    for number in range(FILES):
        (data.source / f"{number:02}.parquet").write_bytes(os.urandom(100_000))
    return data


def put_large(data: DataPipeline, *names: str, size: int = LARGE) -> None:
    for name in names:
        with (data.source / name).open("wb") as file:
            file.truncate(size)


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def hashers(pid: int) -> set[int]:
    """The hash workers below a process."""
    return {each.pid for each in children_tree(pid) if HASHER in _command(each.pid)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def io_class(pid: int) -> int:
    found: int = ctypes.CDLL(None).syscall(IOPRIO_GET[platform.machine()], 1, pid)
    return found >> 13


def test_a_folder_is_adopted_by_a_few_workers_that_give_way(data: DataPipeline) -> None:
    theirs = data.source / ".cache/huggingface/download/late.incomplete"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"half")
    put_large(data, "first.parquet")
    put_large(data, "other.parquet", size=SOME)
    daemon = data.start(WATCHDOG)
    seen: set[int] = set()

    def all_receipted() -> bool:
        now = hashers(daemon.pid)
        assert len(now) <= AT_ONCE
        seen.update(now)
        return len(data.receipts()) == FILES + 2

    try:
        begun = wait_until(lambda: hashers(daemon.pid), what="a hash worker")
        for pid in begun:
            wait_until(lambda pid=pid: os.getpriority(os.PRIO_PROCESS, pid) == NICE, what="its being nice")
            if platform.machine() in IOPRIO_GET:
                wait_until(lambda pid=pid: io_class(pid) == IO_IDLE, what="its coming last on the disk")
        whole = LARGE + SOME + FILES * 100_000
        with paused(min(begun)):  # else a quick disk is through before the next status
            wait_until(lambda: 0 < data.status(WATCHDOG).get("bytes_done", 0) < whole, what="how far it is")
        wait_until(all_receipted, what="all receipts", timeout_s=5 * LONG_S)
        assert len(seen) <= AT_ONCE, "a worker that has done one file takes the next"
        assert os.getpriority(os.PRIO_PROCESS, daemon.pid) < NICE
        status = wait_until(
            lambda: data.status(WATCHDOG).get("complete") and data.status(WATCHDOG), what="all"
        )
        assert status["foreign_files"] == 1
        assert status["bytes_done"] == status["bytes_of"] == whole
    finally:
        assert daemon.stop() == 0
    (told,) = data.events(WATCHDOG, "foreign_files")
    assert told["first"] == ".cache/huggingface/download/late.incomplete"
    assert theirs.read_bytes() == b"half"
    assert {event["event"] for event in data.events(WATCHDOG)}.isdisjoint({"hash_failed", "source_refused"})


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_many_files_are_verified_with_progress_and_an_interrupted_look_tells_what_it_saw_and_leaves_nobody(
    data: DataPipeline, signum: int, code: int
) -> None:
    put_large(data, "z.parquet", size=SOME)
    assert data.once(WATCHDOG).returncode == 0
    command = [*stoker_command(), "verify", "downloads", str(data.file)]
    ended, screen = run_on_terminal(command)
    assert ended == 0
    assert screen.last == ""
    assert any(line.startswith(f"{FILES}/{FILES + 1} files  ") for line in screen.footers), screen.footers
    assert next(line for line in screen.lines if line).endswith(f": {FILES + 1} true")

    put_large(data, "a.parquet", "b.parquet", size=100 * LARGE)
    for name in ("a.parquet", "b.parquet"):
        about = {"path": name, "file": str(data.source / name), "size": 100 * LARGE}
        write_receipt(data.pipeline.layout, replace(data.receipts()["00.parquet"], **about))
    (data.source / "00.parquet").write_bytes(b"w" * 100_000)
    (data.source / "01.parquet").unlink()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as looking:
        assert looking.stdout is not None
        lines = [looking.stdout.readline() for _ in range(3)]  # the table's head, and both findings
        children = children_tree(looking.pid)
        looking.send_signal(signum)
        rest, errors = looking.communicate(timeout=LONG_S)
    assert looking.returncode == code
    assert errors == ""
    assert lines[0].split() == ["verdict", "file", "why"]
    assert {line.split()[0] for line in lines[1:]} == {"wrong", "missing"}
    assert "1 wrong, 1 missing" in rest
    assert "not reached" in rest
    wait_gone(children)
