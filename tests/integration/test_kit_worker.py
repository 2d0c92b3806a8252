"""Workers as real processes: what they say, and how each way to end is classified."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.kit.process import ProcessId, sample_process
from stoker.kit.workers.child import LINE_LIMIT
from stoker.kit.workers.parent import STALL_CPU_S, Bounds, Worker, WorkerExit, WorkerNotStarted
from support.processes import stop_worker, wait_gone
from support.waiting import LONG_S, wait_until

MODULE, WARM = "support.talking_worker", "support.warm_worker"
ENVIRON = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def start() -> Iterator[Any]:
    workers: list[Worker] = []

    def start(task: dict[str, Any], module: str = MODULE, **options: Any) -> Worker:
        options = {"name": "test", "environ": ENVIRON, **options}
        workers.append(Worker(module, task, **options))
        return workers[-1]

    yield start
    for worker in workers:
        stop_worker(worker, 0)


def run(worker: Worker, timeout_s: float = LONG_S) -> tuple[WorkerExit, list[dict[str, Any]]]:
    """Wait on its descriptor alone, as a daemon's loop does."""
    said: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout_s
    while (ended := worker.poll()) is None:
        assert time.monotonic() < deadline, "the worker did not end"
        select.select([worker.fileno()], [], [], 0.2)
        said += worker.messages()
    return ended, said + worker.messages()


def test_a_worker_finishes_with_its_messages_in_order_and_prints_apart(start: Any) -> None:
    ended, said = run(start({"do": "echo", "words": ["a", "ü\n", "c"]}))
    assert ended.kind == "finished" and ended.code == 0
    assert said == [{"kind": "word", "word": word} for word in ("a", "ü\n", "c")]
    assert "printed, which is not a message" in ended.stderr_tail
    assert "printed by a child" in ended.stderr_tail


@pytest.mark.parametrize(
    ("task", "kind", "code", "error"),
    [
        ({"do": "raise"}, "failed", 65, {"type": "DataError", "message": "row group 17 is rotten"}),
        ({"do": "bug"}, "failed", 70, {"type": "KeyError", "message": "'surprise'"}),
        ({"do": "disk"}, "failed", 74, {"type": "FileNotFoundError", "errno": 2}),
        ({"do": "exit", "code": 0}, "failed", 0, None),
        ({"do": "exit", "code": 9}, "failed", 9, None),
    ],
)
def test_a_failure_carries_its_code_and_its_words(
    start: Any, task: dict[str, Any], kind: str, code: int, error: dict[str, Any] | None
) -> None:
    ended, _ = run(start(task))
    assert (ended.kind, ended.code, ended.signal, ended.result) == (kind, code, None, None)
    if error is None:
        assert ended.error is None
    else:
        assert ended.error is not None and error.items() <= ended.error.items()
        assert ended.error["exit_code"] == code


def test_a_segfault_is_killed_by_its_signal_with_the_stack_in_the_last_lines(start: Any) -> None:
    ended, _ = run(start({"do": "segfault"}))
    assert (ended.kind, ended.signal, ended.code) == ("killed", signal.SIGSEGV, None)
    assert "SIGSEGV" in ended.reason()
    assert any("talking_worker" in line for line in ended.stderr_tail)


def test_a_stop_lets_the_worker_reach_its_safe_point(start: Any) -> None:
    worker = start({"do": "work until stopped"})
    wait_until(worker.messages, what="the first word")
    ended = stop_worker(worker, 10)
    assert ended is not None and (ended.kind, ended.code) == ("failed", 75)
    assert worker.poll() is ended


def test_helpers_in_the_workers_group_end_with_it(start: Any) -> None:
    ended, said = run(start({"do": "leave a helper"}))
    assert ended.kind == "finished"
    wait_gone([ProcessId(said[0]["pid"], _start_of(said[0]["pid"]))])


def _start_of(pid: int) -> int:
    try:
        return ProcessId.of(pid).start_ticks
    except ProcessLookupError:
        return 0


def test_a_worker_that_waits_for_a_line_hears_the_stop(start: Any) -> None:
    worker = start({"do": "answer"}, keep_open=True)
    worker.send({"ask": 1})
    wait_until(worker.messages)
    ended = stop_worker(worker, 10)
    assert ended is not None and ended.result == {"stopped_after": 1}


def test_a_conversation_goes_on_until_the_input_is_closed_and_no_message_is_too_large_for_it(
    start: Any,
) -> None:
    large = 3 << 20  # more than any pipe takes
    worker = start({"do": "answer", "filler": "y" * large}, keep_open=True)
    for number in (1, 2):
        worker.send({"ask": number})
        assert wait_until(worker.messages) == [{"kind": "answer", "to": number}]
    os.kill(worker.pid, signal.SIGSTOP)
    worker.send({"ask": "z" * large})  # never blocks the daemon
    assert worker.messages() == []
    os.kill(worker.pid, signal.SIGCONT)
    worker.close_input()
    ended, said = run(worker)
    assert ended.result == {"answered": 3} and len(said[0]["to"]) == large


def test_a_message_without_bounds_is_dropped_and_said(start: Any) -> None:
    ended, said = run(start({"do": "long line", "bytes": LINE_LIMIT}))
    assert ended.kind == "finished" and said == []
    assert any("not a message" in line for line in ended.stderr_tail)


def test_a_worker_silent_past_its_deadline_ends_with_its_stacks(start: Any) -> None:
    worker = start({"do": "hang"}, bounds=Bounds(silent_s=30.0))
    assert wait_until(worker.messages) == [{"kind": "hanging"}]
    assert worker.poll(time.monotonic() + 31.0) is None
    ended, _ = run(worker)
    assert (ended.kind, ended.signal) == ("silent", signal.SIGABRT)
    assert any("talking_worker.py" in line and "in main" in line for line in ended.stderr_tail)


def test_garbage_is_no_message_and_the_last_lines_of_stderr_are_kept(start: Any) -> None:
    ended, said = run(start({"do": "garble"}))
    assert ended.kind == "finished" and said == []
    assert len(ended.stderr_tail) == 300 and "err 399" in ended.stderr_tail


def test_a_worker_dies_with_a_daemon_killed_by_9(tmp_path: Path) -> None:
    code = f"""
import select, sys
from stoker.kit.workers.parent import Worker
worker = Worker({MODULE!r}, {{"do": "hang"}}, name="w")
while not worker.messages(): select.select([worker.fileno()], [], [])
print(worker.pid, flush=True)
select.select([], [], [])
"""
    daemon = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, **ENVIRON}
    )
    assert daemon.stdout is not None
    worker = ProcessId.of(int(daemon.stdout.readline()))
    assert worker.alive()
    daemon.kill()
    daemon.wait(LONG_S)
    wait_gone([worker])
    daemon.stdout.close()


def test_a_warm_worker_does_task_after_task_may_be_silent_between_and_ends_with_its_input(start: Any) -> None:
    bounds = Bounds(silent_s=30.0)
    worker = start({"do": "pid"}, module=WARM, keep_open=True, bounds=bounds)
    pids = []
    for _ in range(3):
        done = wait_until(lambda: worker.hear()[1], what="the task's end")
        assert (done.kind, done.code) == ("finished", None)
        pids.append(done.result["pid"])
        assert worker.poll() is None and worker.stuck_s() == 0
        worker.give({"do": "pid"}, bounds=bounds)
    wait_until(lambda: worker.hear()[1])
    assert worker.poll(time.monotonic() + 1000) is None and worker.stuck_s() == 0, "it is idle"
    worker.give({"do": "pid"}, bounds=bounds)
    assert wait_until(lambda: worker.hear()[1]).kind == "finished"
    worker.close_input()
    ended, _ = run(worker)
    assert pids == [worker.pid] * 3
    assert (ended.code, ended.signal, ended.error) == (0, None, None)


def test_an_error_ends_a_warm_worker_as_any_other(start: Any) -> None:
    worker = start({"do": "raise"}, module=WARM, keep_open=True)
    ended, _ = run(worker)
    assert (ended.kind, ended.code) == ("failed", 65)


def test_neither_a_word_nor_cpu_time_is_a_stall_and_computing_is_none(start: Any) -> None:
    busy, halted = (start({"do": "burn"}, bounds=Bounds(stall_s=30.0)) for _ in range(2))
    for worker in (busy, halted):
        wait_until(worker.messages, what="the first word")
        worker.poll()
    os.kill(halted.pid, signal.SIGSTOP)
    before = sample_process(busy.pid).cpu_s
    wait_until(lambda: sample_process(busy.pid).cpu_s > before + 2 * STALL_CPU_S, what="CPU time")
    later = time.monotonic() + 31.0
    assert halted.poll(later) is None and busy.poll(later) is None
    assert halted._past == "stalled" and busy._past is None
    assert halted.poll(later + 60) is None  # ABRT does not reach a stopped process: KILL does
    ended, _ = run(halted)
    assert (ended.kind, ended.signal) == ("stalled", signal.SIGKILL)


def test_work_before_a_halt_does_not_put_off_its_end(start: Any) -> None:
    worker = start({"do": "burn"}, bounds=Bounds(stall_s=80.0))
    wait_until(worker.messages, what="the first word")
    worker.poll()
    before = sample_process(worker.pid).cpu_s
    wait_until(lambda: sample_process(worker.pid).cpu_s > before + 2 * STALL_CPU_S, what="CPU time")
    os.kill(worker.pid, signal.SIGSTOP)
    halted = time.monotonic()
    for seconds in range(1, 93):  # at most a stall time and a look after it was halted
        worker.poll(halted + seconds)
    assert worker._past == "stalled"


def test_a_worker_above_its_memory_is_killed_at_once(start: Any) -> None:
    worker = start({"do": "allocate", "bytes": 200 << 20}, bounds=Bounds(most_rss_bytes=100 << 20))
    ended, _ = run(worker)
    assert (ended.kind, ended.signal) == ("over_memory", signal.SIGKILL)
    assert ended.max_rss_bytes > 100 << 20 and "MiB" in ended.reason()


def test_what_is_meant_for_the_daemon_does_not_reach_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.kit.exec import child_environment

    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    assert not {"NOTIFY_SOCKET"} & child_environment({"A": "b"}).keys()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["{pid}", "15", "", "--", "sh", "-c", "exit 5"], 5),
        (["1", "15", "", "--", "true"], 75),
        (["{pid}", "15", "", "--", "/no/such/command"], 127),
        (["{pid}", "15", "", "--", "/etc/passwd"], 126),
        (["{pid}", "--", "true"], 64),
        (["x", "15", "", "--", "true"], 64),
    ],
)
def test_the_launcher_starts_only_a_child_of_the_parent_it_was_told(arguments: list[str], code: int) -> None:
    told = [argument.format(pid=os.getpid()) for argument in arguments]
    command = [sys.executable, "-m", "stoker.kit.exec", *told]
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == code


def test_the_launcher_gives_sigpipe_back_its_meaning() -> None:
    probe = ["sh", "-c", "grep SigIgn /proc/self/status"]
    command = [sys.executable, "-m", "stoker.kit.exec", str(os.getpid()), "15", "", "--", *probe]
    ignored = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_no_room_for_another_process_is_said_as_that(start: Any) -> None:
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(WorkerNotStarted, match=r"for test: Too many open files; .*TasksMax="):
            start({"do": "talk"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
