"""The worker pool of a daemon with real workers: idle ones, stuck ones, ends of all kinds."""

from __future__ import annotations

import math
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
from stoker.kit.process import ProcessId
from stoker.kit.workers import pool as pool_module
from stoker.kit.workers.parent import Worker, WorkerExit
from stoker.kit.workers.pool import ABANDONED, Activity, WorkerPool
from support.fuse import WHY_NO_FUSE, FuseMount, fuse_is_here
from support.mounts import apart
from support.pools import heard
from support.processes import wait_gone
from support.waiting import LONG_S, wait_until

TALKING, REUSABLE = "support.talking_worker", "support.warm_worker"


def pool_of(name: str, waiter: Waiter) -> WorkerPool[None]:
    """A pool whose events are kept in `told`."""
    events: list[tuple[str, dict[str, Any]]] = []
    pool = WorkerPool[None](
        name,
        waiter,
        record=lambda event, **fields: events.append((event, fields)),
        most_rss_bytes=100 << 20,
        recycle_rss_bytes=80 << 20,
    )
    pool.told = events  # type: ignore[attr-defined]
    return pool


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool[None]]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    waiter = Waiter()
    made = pool_of(str(tmp_path), waiter)
    yield made
    monkeypatch.setattr(pool_module, "STOP_GRACE_S", 0.1)
    made.stop()
    waiter.close()


def turn_until(pool: WorkerPool[None], condition: Callable[[], bool]) -> None:
    def turn() -> bool:
        pool.wait(0.05)
        list(pool.hear())
        return condition()

    wait_until(turn)


def start(
    pool: WorkerPool[None], subject: str, task: dict[str, Any], module: str = REUSABLE, **options: Any
) -> Any:
    activity = Activity("build", module, **{"silent_s": LONG_S, "is_reusable": module == REUSABLE, **options})
    return pool.start(activity, subject, task, None)


def idle_worker(pool: WorkerPool[None]) -> int:
    """The pid of a worker that has done a task and waits for the next."""
    start(pool, "a", {"do": "pid"})
    return int((heard(pool, "a").result or {})["pid"])


def told(pool: WorkerPool[None]) -> list[str]:
    return [event for event, _ in pool.told]  # type: ignore[attr-defined]


def test_a_reusable_worker_takes_the_next_task_of_its_module(pool: WorkerPool[None]) -> None:
    found = []
    for subject in ("a", "b", "a"):
        start(pool, subject, {"do": "pid"})
        ended = heard(pool, subject)
        assert ended.kind == "finished" and subject not in pool and not pool.busy
        found.append((ended.result or {})["pid"])
    assert len(set(found)) == 1
    first, second = start(pool, "a", {"do": "burn"}), start(pool, "b", {"do": "pid"})
    assert [first.worker.pid, second.worker.pid == first.worker.pid] == [found[0], False], "two at once"
    assert heard(pool, "b").kind == "finished"
    assert pool.busy == {"a": "build"}


def test_what_a_worker_says_last_is_heard_with_its_own_task(
    pool: WorkerPool[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = Worker.poll

    def late(worker: Worker, now: float | None = None) -> WorkerExit | None:
        """Poll until word and end have both come, and not before."""
        wait_until(lambda: poll(worker, now) is not None or not worker.at_work)
        return poll(worker, now)

    spoken: list[tuple[str, str]] = []
    for word in ("a", "b", "c"):
        start(pool, word, {"do": "say", "word": word})
        with monkeypatch.context() as patched:
            patched.setattr(Worker, "poll", late)
            for job, words, _ in pool.hear():
                spoken.extend((job.subject, said["word"]) for said in words)
        assert word not in pool
    assert spoken == [("a", "a"), ("b", "b"), ("c", "c")]


def test_a_worker_that_recycles_died_idle_failed_stayed_big_or_idled_for_long_is_not_kept(
    pool: WorkerPool[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(pool, "a", {"do": "recycle"})
    recycled = (heard(pool, "a").result or {})["pid"]
    fresh = idle_worker(pool)
    assert fresh != recycled
    turn_until(pool, lambda: recycled not in pool.pids)
    os.kill(fresh, signal.SIGKILL)
    turn_until(pool, lambda: not pool.pids)
    fresh = idle_worker(pool)
    start(pool, "a", {"do": "segfault"})
    assert heard(pool, "a").signal == signal.SIGSEGV
    assert not pool.pids
    with monkeypatch.context() as patched:
        patched.setattr(pool, "_recycle_rss_bytes", 1 << 20)
        big = idle_worker(pool)
        turn_until(pool, lambda: big not in pool.pids)
    monkeypatch.setattr(pool_module, "IDLE_S", 0.0)
    assert idle_worker(pool) not in (recycled, fresh, big)
    turn_until(pool, lambda: not pool.pids)
    assert told(pool) == []


def test_the_daemon_sleeps_on_while_its_workers_are_looked_at(pool: WorkerPool[None]) -> None:
    start(pool, "a", {"do": "burn"})
    wait_until(lambda: [*pool.hear()], what="the first word")
    pool._waiter.longest_s = 1.5  # as systemd's watchdog sets it: longer than between two looks
    began = time.monotonic()
    assert pool.wait(3600) == [] and time.monotonic() - began >= 1.5


def test_who_takes_too_much_memory_is_ended_also_between_two_turns(pool: WorkerPool[None]) -> None:
    start(pool, "a", {"do": "allocate", "bytes": 200 << 20}, is_memory_bound=True)
    ended = heard(pool, "a")
    assert ended.kind == "over_memory"


def test_a_worker_the_kernel_does_not_let_go_keeps_its_place_and_nothing_else(
    pool: WorkerPool[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(pool, "a", {"do": "burn"})
    real, hung = job.worker._signal_group, [signal.SIGTERM, signal.SIGKILL]
    monkeypatch.setattr(
        job.worker, "_signal_group", lambda signum: None if signum in hung else real(signum)
    )  # as one in uninterruptible I/O takes them
    job.worker.ask_to_stop(0)
    monkeypatch.setattr(pool_module, "KILL_WAIT_S", 0.1)
    turn_until(pool, lambda: pool.busy == {"a": ABANDONED})
    assert told(pool) == ["worker_stuck"]
    start(pool, "b", {"do": "pid"})
    assert heard(pool, "b").kind == "finished"
    assert told(pool) == ["worker_stuck"] and "a" in pool
    hung.clear()  # its mount answers
    assert heard(pool, "a").signal == signal.SIGKILL
    assert told(pool) == ["worker_stuck", "worker_came_back"] and not pool.busy


def test_a_stop_does_not_wait_for_what_the_kernel_holds(
    pool: WorkerPool[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "KILL_WAIT_S", 0.1)
    monkeypatch.setattr(pool_module, "STOP_GRACE_S", 0.1)
    held: list[tuple[Any, Callable[[int], None]]] = []
    for subject in ("a", "b", "c"):
        worker = start(pool, subject, {"do": "burn"}).worker
        held.append((worker, worker._signal_group))
        worker._signal_group = lambda signum: None
    pool.stop()
    assert not pool.busy and not pool.pids
    gone = [ProcessId.of(worker.pid) for worker, _ in held]
    for worker, real in held:
        real(signal.SIGKILL)
        worker.wait(time.monotonic() + LONG_S)
    wait_gone(gone)


def test_one_that_halts_is_ended_while_one_that_computes_in_silence_is_not(
    pool: WorkerPool[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.kit.workers.parent.STACKS_S", 0.1)
    monkeypatch.setattr("stoker.kit.workers.parent.STALL_CPU_S", 0.05)  # on a machine with much else to do
    busy, halted = (
        start(pool, "busy", {"do": "burn"}, stall_s=2.0),
        start(pool, "halted", {"do": "burn"}, stall_s=2.0),
    )
    os.kill(halted.worker.pid, signal.SIGSTOP)
    ended = heard(pool, "halted")
    assert ended.kind == "stalled"
    assert "busy" in pool and busy.worker.poll() is None


HANGING = """
import sys
from pathlib import Path
from integration.test_worker_pool import hangs_and_comes_back
hangs_and_comes_back(Path(sys.argv[1]))
"""


def test_a_worker_is_not_ended_for_a_silence_in_which_nobody_listened(
    pool: WorkerPool[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "FROZEN_S", -1.0)  # each hearing as after a freeze
    began = time.monotonic()
    job = start(pool, "a", {"do": "hang"}, TALKING, silent_s=0.1)
    turn_until(pool, lambda: time.monotonic() - began > 0.5)
    assert not job.worker.ending
    monkeypatch.setattr(pool_module, "FROZEN_S", math.inf)
    turn_until(pool, lambda: job.worker.ending)


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
    pool_module.KILL_WAIT_S = pool_module.STOP_GRACE_S = 0.2
    pool = pool_of(str(home), Waiter())
    first, second = ({"do": "read", "path": str(mount.place / name)} for name in ("first", "second"))
    try:
        mount.swallow()
        wait_until(lambda: hangs(pool, mount, first), what="one that not even kill -9 ends")
        start(pool, "b", {"do": "pid"})
        assert heard(pool, "b").kind == "finished"
        mount.go_on()
        assert heard(pool, "a").signal == signal.SIGKILL
        assert told(pool) == ["worker_stuck", "worker_came_back"]
        mount.swallow()
        wait_until(lambda: hangs(pool, mount, second), what="one that not even kill -9 ends")
        pid = pool["a"].worker.pid
        pool.stop()  # does not wait for ever
        assert ProcessId.of(pid).alive()
    finally:
        mount.end()


def hangs(pool: WorkerPool[None], mount: FuseMount, task: dict[str, Any]) -> bool:
    """Whether a worker on the mount hangs for good: not so one killed before its request was taken."""
    worker = start(pool, "a", task).worker
    wait_until(lambda: worker.pid in mount.waiting(), what="it to wait")
    time.sleep(0.1)
    worker.ask_to_stop(0)
    turn_until(pool, lambda: pool.busy in ({"a": ABANDONED}, {}))
    return bool(pool.busy)
