"""The crew of a data daemon with real workers: warm ones, stuck ones, ends of all kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.kit.loop import Waiter
from stoker.kit.process.process_id import ProcessId
from stoker.kit.workers import pool as crew_module
from stoker.kit.workers.pool import ABANDONED, Crew
from support.crews import heard
from support.fuse import WHY_NO_FUSE, FuseMount, fuse_is_here
from support.mounts import apart
from support.processes import wait_gone
from support.waiting import LONG_S, wait_until

TALKING, WARM = "support.talking_worker", "support.warm_worker"


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    waiter = Waiter()
    made = Crew(str(tmp_path), waiter)
    made.told: list[tuple[str, dict[str, Any]]] = []  # type: ignore[attr-defined, misc]
    made.tell = lambda event, **fields: made.told.append((event, fields))  # type: ignore[attr-defined]
    yield made
    monkeypatch.setattr(crew_module, "STOP_GRACE_S", 0.1)
    made.stop()
    waiter.close()


def turn_until(crew: Crew, condition: Callable[[], bool]) -> None:
    def turn() -> bool:
        crew.wait(0.05)
        list(crew.hear())
        return condition()

    wait_until(turn)


def start(crew: Crew, subject: str, task: dict[str, Any], module: str = WARM, **options: Any) -> Any:
    return crew.start("build", subject, module, task, **{"quiet_s": LONG_S, "warm": True, **options})


def idle_worker(crew: Crew) -> int:
    """The pid of a worker that has done a task and waits for the next."""
    start(crew, "a", {"do": "pid"})
    return int((heard(crew, "a").result or {})["pid"])


def told(crew: Crew) -> list[str]:
    return [event for event, _ in crew.told]  # type: ignore[attr-defined]


def test_a_warm_worker_takes_the_next_task_of_its_module(crew: Crew) -> None:
    found = []
    for subject in ("a", "b", "a"):
        start(crew, subject, {"do": "pid"})
        ended = heard(crew, subject)
        assert ended.kind == "finished" and subject not in crew and not crew.busy
        found.append((ended.result or {})["pid"])
    assert len(set(found)) == 1


def test_two_at_once_are_two_workers(crew: Crew) -> None:
    first, second = start(crew, "a", {"do": "burn"}), start(crew, "b", {"do": "pid"})
    assert first.worker.pid != second.worker.pid
    assert heard(crew, "b").kind == "finished"
    assert crew.busy == {"a": "build"}


def test_a_recycled_worker_is_not_kept(crew: Crew) -> None:
    start(crew, "a", {"do": "recycle"})
    old = (heard(crew, "a").result or {})["pid"]
    start(crew, "a", {"do": "pid"})
    assert (heard(crew, "a").result or {})["pid"] != old
    turn_until(crew, lambda: old not in crew.pids)
    assert told(crew) == []


def test_a_worker_that_stayed_big_is_not_kept(crew: Crew) -> None:
    crew.recycle_rss_bytes = 1 << 20
    start(crew, "a", {"do": "pid"})
    old = (heard(crew, "a").result or {})["pid"]
    turn_until(crew, lambda: old not in crew.pids)


def test_a_worker_that_dies_idle_is_forgotten_and_told_of_only_if_a_signal_did_it(crew: Crew) -> None:
    os.kill(idle_worker(crew), signal.SIGKILL)
    turn_until(crew, lambda: not crew.pids)
    assert told(crew) == ["idle_worker_died"]
    start(crew, "a", {"do": "pid"})
    assert heard(crew, "a").kind == "finished"


def test_an_idle_worker_goes_after_its_time(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    idle_worker(crew)
    assert crew._pool.tend(time.monotonic() + 61.0) == []
    turn_until(crew, lambda: not crew.pids)
    assert told(crew) == []


def test_a_failed_warm_worker_is_gone_and_the_next_is_fresh(crew: Crew) -> None:
    start(crew, "a", {"do": "segfault"})
    assert heard(crew, "a").signal == signal.SIGSEGV
    assert not crew.pids
    start(crew, "a", {"do": "pid"})
    assert heard(crew, "a").kind == "finished"


def test_the_daemon_sleeps_on_while_workers_only_tell_samples(crew: Crew) -> None:
    job = start(crew, "a", {"do": "burn"})
    wait_until(lambda: [*crew.hear()], what="the first word")
    job.worker.sample = None
    assert wait_until(lambda: crew.wait(0.5) == [] and job.worker.sample, what="a sample").rss_bytes > 0
    crew._waiter.longest_s = 1.5  # as systemd's watchdog sets it: more samples come than that
    assert crew.wait(3600) == []


def test_who_takes_too_much_memory_is_ended_also_between_two_turns(crew: Crew) -> None:
    crew.most_rss_bytes = {"build": 100 << 20}
    start(crew, "a", {"do": "allocate", "bytes": 200 << 20})
    ended = heard(crew, "a")
    assert ended.kind == "over_memory"


def test_a_worker_the_kernel_does_not_let_go_keeps_its_place_and_nothing_else(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(crew, "a", {"do": "burn"})
    real, hung = job.worker._signal_group, [signal.SIGTERM, signal.SIGKILL]
    monkeypatch.setattr(
        job.worker, "_signal_group", lambda signum: None if signum in hung else real(signum)
    )  # as one in uninterruptible I/O takes them
    job.worker.ask_to_stop(0)
    monkeypatch.setattr(crew_module, "KILL_WAIT_S", 0.1)
    turn_until(crew, lambda: crew.busy == {"a": ABANDONED})
    assert told(crew) == ["worker_stuck"]
    start(crew, "b", {"do": "pid"})
    assert heard(crew, "b").kind == "finished"
    assert told(crew) == ["worker_stuck"] and "a" in crew
    hung.clear()  # its mount answers
    assert heard(crew, "a").signal == signal.SIGKILL
    assert told(crew) == ["worker_stuck", "worker_came_back"] and not crew.busy


def test_a_stop_does_not_wait_for_what_the_kernel_holds(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "KILL_WAIT_S", 0.1)
    monkeypatch.setattr(crew_module, "STOP_GRACE_S", 0.1)
    held: list[tuple[Any, Callable[[int], None]]] = []
    for subject in ("a", "b", "c"):
        worker = start(crew, subject, {"do": "burn"}).worker
        held.append((worker, worker._signal_group))
        worker._signal_group = lambda signum: None
    crew.stop()
    assert not crew.busy and not crew.pids
    gone = [ProcessId.of(worker.pid) for worker, _ in held]
    for worker, real in held:
        real(signal.SIGKILL)
        worker.wait(time.monotonic() + LONG_S)
    wait_gone(gone)


def test_one_that_halts_is_ended_while_one_that_computes_in_silence_is_not(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.stall_s = {"build": 2.0}
    monkeypatch.setattr("stoker.kit.workers.parent.TERM_GRACE_S", 0.1)
    busy, halted = start(crew, "busy", {"do": "burn"}), start(crew, "halted", {"do": "burn"})
    os.kill(halted.worker.pid, signal.SIGSTOP)
    ended = heard(crew, "halted")
    assert (ended.kind, ended.cause) == ("timed_out", "stalled")
    assert "busy" in crew and busy.worker.poll() is None


HANGING = """
import sys
from pathlib import Path
from integration.test_crew import hangs_and_comes_back
hangs_and_comes_back(Path(sys.argv[1]))
"""


@pytest.mark.root
def test_a_worker_in_a_hung_mount_is_abandoned_until_that_answers(tmp_path: Path) -> None:
    command = apart([sys.executable, "-c", HANGING, str(tmp_path)])
    if command is None or not fuse_is_here():
        pytest.skip(WHY_NO_FUSE)
    path = str(Path(__file__).parents[1])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def hangs_and_comes_back(home: Path) -> None:
    """In mounts of its own: a file system that takes reads and does not answer; kill -9 does not help."""
    mount = FuseMount(home / "folder", home / "mount")
    for name in ("first", "second"):  # what was read once comes from the page cache
        (mount.folder / name).write_bytes(b"x" * 4096)
    crew_module.KILL_WAIT_S = crew_module.STOP_GRACE_S = 0.2
    crew = Crew(str(home), Waiter())
    crew.told = []  # type: ignore[attr-defined]
    crew.tell = lambda event, **fields: crew.told.append((event, fields))  # type: ignore[attr-defined]
    first, second = ({"do": "read", "path": str(mount.place / name)} for name in ("first", "second"))
    try:
        mount.swallow()
        wait_until(lambda: hangs(crew, mount, first), what="one that not even kill -9 ends")
        start(crew, "b", {"do": "pid"})
        assert heard(crew, "b").kind == "finished"
        mount.go_on()
        assert heard(crew, "a").signal == signal.SIGKILL
        assert told(crew) == ["worker_stuck", "worker_came_back"]
        mount.swallow()
        wait_until(lambda: hangs(crew, mount, second), what="one that not even kill -9 ends")
        pid = crew["a"].worker.pid
        crew.stop()  # does not wait for ever
        assert ProcessId.of(pid).alive()
    finally:
        mount.end()


def hangs(crew: Crew, mount: FuseMount, task: dict[str, Any]) -> bool:
    """Whether a worker on the mount hangs for good: not so one killed before its request was taken."""
    worker = start(crew, "a", task).worker
    wait_until(lambda: worker.pid in mount.waiting(), what="it to wait")
    time.sleep(0.1)
    worker.ask_to_stop(0)
    turn_until(crew, lambda: crew.busy in ({"a": ABANDONED}, {}))
    return bool(crew.busy)
