"""The stacks of a trainer that may hang: who is asked for them, and which rank is elsewhere than most."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.kit.process import ProcessId
from stoker.store.layout import RunLayout
from stoker.supervise.health import stacks
from stoker.supervise.health.stacks import grouped, odd_ranks, take
from stoker.supervise.health.trainer_protocol import TrainerView, heard, parse
from support.processes import kill_tree
from support.waiting import wait_until

# A rank as the built-in trainer begins; then it keeps the GIL for ever.
HOLDS_THE_GIL = """
import ctypes, os, sys, threading
from stoker.training.protocol import dumps_stacks
words = dumps_stacks(os.environ)
threading.Thread(target=threading.Event().wait, daemon=True).start()
def all_reduce():
    print(words["pid"], words["stacks"], flush=True)
    while True: ctypes.PyDLL(None).pause()
all_reduce()
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[tuple[ProcessId, int, Path]]:
    layout = RunLayout(tmp_path)
    layout.log.mkdir()
    environ = {
        "STOKER_NOTIFY_SOCKET": "x",
        "STOKER_RUN_DIR": str(tmp_path),
        "STOKER_LAUNCH": "l1",
        "RANK": "3",
    }
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_GIL], env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        pid, signum = map(int, started.stdout.readline().split())
        yield ProcessId.of(pid), signum, layout.stacks("l1", 3)
    finally:
        kill_tree(started.pid)
        started.wait()


def test_a_rank_that_holds_the_gil_tells_its_stacks_each_time_anew(rank: tuple[ProcessId, int, Path]) -> None:
    process, signum, file = rank
    for _ in range(2):
        found = take([process], {3: (process.pid, signum)}, {3: file})
        assert found[3].count("in all_reduce") == 1 and found[3].count("hread 0x") == 2
        (group,) = grouped(found)
        assert "in all_reduce" in group.place[0], "the main thread is what counts"
    assert file.read_text().count("in all_reduce") == 2


def test_only_a_process_of_the_launch_that_announced_and_catches_the_signal_gets_it(
    rank: tuple[ProcessId, int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_S", 0.1)
    process, signum, file = rank
    for tree, announced in (
        ([], {3: (process.pid, signum)}),  # of another launch
        ([process], {}),
        ([process], {3: (process.pid, signal.SIGUSR1)}),  # it would end it
    ):
        assert not take(tree, announced, {3: file})
        assert process.alive() and not file.read_text()
    file.write_bytes(b" " * stacks.MOST_BYTES)
    assert not take([process], {3: (process.pid, signum)}, {3: file}), "enough is kept of this launch"


DUMP = """Thread 0x00007f{rank} (most recent call first):
  File "threading.py", line {rank} in wait

Current thread 0x00007e{rank} (most recent call first):
  File "step.py", line {line} in begin
  File "trainer.py", line 60 in main
"""


def test_ranks_at_one_place_are_one_group_and_the_one_elsewhere_is_named() -> None:
    dumps = {rank: DUMP.format(rank=rank, line=7 if rank == 2 else 9) for rank in range(4)}
    most, other = grouped(dumps)
    assert (most.ranks, other.ranks) == ((0, 1, 3), (2,))
    assert most.place == ('File "step.py", line 9 in begin', 'File "trainer.py", line 60 in main')
    assert odd_ranks([most, other]) == (2,)
    report = "\n".join(stacks.report("why", [most, other], []))
    assert "-- ranks 0, 1, 3\n" in report and "-- rank 2, elsewhere than most\n" in report
    assert odd_ranks(grouped({rank: dumps[rank] for rank in (0, 2)})) == (), "of two nobody knows which"
    assert odd_ranks(grouped({0: dumps[0]})) == odd_ranks(grouped({})) == ()
    assert grouped({0: ""})[0].place == ()


def test_py_spy_names_the_main_thread_wherever_it_stands() -> None:
    text = 'Process 5: python\nPython v3.11\n\nThread 6 (idle): "MainThread"\n    begin (step.py:9)\n'
    (group,) = grouped({0: text + 'Thread 0x7F (active): "pin"\n    wait (threading.py:3)\n'})
    assert group.place == ("begin (step.py:9)",)


def test_a_report_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_BYTES", 1000)
    for _ in range(30):
        stacks.append(tmp_path / "stacks.txt", ["x" * 98])
    assert (tmp_path / "stacks.txt").stat().st_size == 1000


def test_what_a_rank_announces_is_kept_and_nonsense_is_not() -> None:
    view = TrainerView("a", 0.0, 0.0)
    for said in (
        "PID=7\nSTACKS=12",
        "RANK=1\nPID=8\nSTACKS=10",
        "RANK=2\nPID=9",
        "RANK=9999\nPID=9\nSTACKS=10",
    ):
        view = heard(view, parse(f"LAUNCH=a\nPHASE=load\n{said}".encode(), "a") or {}, 1.0)
    for never in (signal.SIGKILL, signal.SIGSTOP, 0, 999):
        view = heard(view, parse(f"LAUNCH=a\nPID=7\nSTACKS={int(never)}".encode(), "a") or {}, 1.0)
    assert view.announced == {0: (7, 12), 1: (8, 10)}


def test_the_kernel_tells_of_a_process_whose_name_is_no_text(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/\xff\xfe"
    Path(os.fsdecode(program)).symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([program, "600"]) as process:
        try:
            wait_until(
                lambda: Path(f"/proc/{process.pid}/comm").read_bytes() == b"\xff\xfe\n", what="its name"
            )
            (line,) = [line for line in stacks.of_kernel([ProcessId.of(process.pid)]) if line[0] != " "]
            assert line.startswith(f"{process.pid} \ufffd\ufffd: ")
        finally:
            process.kill()
