"""The guard with real processes: whatever dies, nothing outlives it, and the lock tells the truth."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.kit.lock import Lock, read_holder
from stoker.kit.process import ProcessId, children_tree
from support.processes import kill_tree, wait_gone
from support.waiting import LONG_S, wait_until

# A supervisor in a few lines: takes the lock, starts the guard with it, lets go at the guard's first word.
# The guard's own look at its parent is put off for good: only the kernel tells it of the supervisor's end.
SUPERVISOR = """
import os, subprocess, sys
from pathlib import Path
from stoker.kit.lock import Lock
lock_path, report_path, stop_time, *command = sys.argv[1:]
lock = Lock.acquire(Path(lock_path), purpose="supervisor")
reading, writing = os.pipe()
output = os.environ.get("OUTPUT", "")
arguments = [str(os.getpid()), str(lock.fileno()), str(writing), stop_time, output, ""]
code = "import sys; from stoker.kit import guard; guard.IDLE_S = 1e6; sys.exit(guard.main(sys.argv[1:]))"
guard = subprocess.Popen(
    [sys.executable, "-c", code, *arguments, "--", *command],
    pass_fds=(lock.fileno(), writing), start_new_session=True)
os.close(writing)
with open(report_path, "wb", buffering=0) as reports:
    while data := os.read(reading, 4096):
        reports.write(data)
        lock.handed_over()
sys.exit(guard.wait())
"""

# Does its work in a file; on TERM leaves a mark there and ends.
POLITE = """
import pathlib, signal, sys, threading
mark, stop = pathlib.Path(sys.argv[1]), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
mark.write_text("working")
while not stop.wait(0.05): pass
mark.write_text("saved")
"""

# Ends at once, leaving behind a process in a session of its own that ignores TERM.
LEAVES_ORPHAN = 'setsid sh -c "trap \\"\\" TERM; echo \\$\\$ > $0; while :; do sleep 0.1; done" & '

# Has two workers, as PyTorch's data loaders do, and starts a program after them; once asked to stop it waits
# for the program, which the guard asks after the workers, and ends without them: then they are asked.
HAS_WORKERS = """
import multiprocessing, os, pathlib, signal, subprocess, sys
mark = pathlib.Path(sys.argv[1])
forked = os.fork()
if not forked:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(mark.write_text(mark.read_text() + ", worker asked")))
    while True: signal.pause()
served = multiprocessing.get_context("forkserver").Process(target=signal.pause)
served.start()
program = subprocess.Popen(["sleep", "1000"])
signal.signal(signal.SIGTERM, lambda *_: None)
mark.write_text("working")
program.wait()
is_whole = os.waitpid(forked, os.WNOHANG) == (0, 0) and served.is_alive()
mark.write_text("saved" if is_whole else "lost a worker")
os._exit(0)
"""


class Guarded:
    """A supervisor, its guard and the guarded command, observed from outside."""

    def __init__(
        self, directory: Path, command: list[str], stop_time_s: float = 20.0, **options: Any
    ) -> None:
        self.lock = directory / "trainer.lock"
        self._reports = directory / "reports"
        self.supervisor = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SUPERVISOR,
                str(self.lock),
                str(self._reports),
                str(stop_time_s),
                *command,
            ],
            **options,
        )

    def reports(self) -> list[dict[str, Any]]:
        lines = self._reports.read_bytes().splitlines() if self._reports.exists() else []
        return [json.loads(line) for line in lines]

    def reported(self, word: str) -> Any:
        return wait_until(lambda: [r for r in self.reports() if word in r], what=f"the report {word!r}")[0]

    def guard(self) -> ProcessId:
        return ProcessId.of(self.reported("guard")["pid"])

    def child(self) -> ProcessId:
        started = self.reported("started")
        return ProcessId(started["started"], started["start_ticks"])

    def lock_is_free(self) -> bool:
        return read_holder(self.lock) is None

    def end(self) -> None:
        kill_tree(self.supervisor.pid)
        self.supervisor.wait(LONG_S)
        for report in self.reports():
            if "guard" in report:
                kill_tree(report["pid"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Guarded] = []

    def start(*arguments: Any, **options: Any) -> Guarded:
        started.append(Guarded(tmp_path, *arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def polite(tmp_path: Path) -> tuple[list[str], Path]:
    mark = tmp_path / "mark"
    return [sys.executable, "-c", POLITE, str(mark)], mark


def wait_for_text(path: Path, text: str) -> None:
    wait_until(lambda: path.exists() and path.read_text() == text, what=f"{text!r} in {path.name}")


def orphan_in(path: Path) -> ProcessId:
    wait_until(lambda: path.exists() and path.read_text().strip(), what="the orphan's pid")
    return ProcessId.of(int(path.read_text()))


def test_the_lock_is_held_by_the_guard_alone_and_free_after_the_end(start: Any, tmp_path: Path) -> None:
    command, mark = polite(tmp_path)
    guarded = start(command)
    wait_for_text(mark, "working")
    child, guard = guarded.child(), guarded.guard()

    def holders(pid: int) -> bool:
        links = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed while we look
                links.append(str(link.readlink()))
        return str(guarded.lock) in links

    wait_until(lambda: not holders(guarded.supervisor.pid), what="the supervisor to let go of the lock")
    assert holders(guard.pid) and not holders(child.pid)
    assert not guarded.lock_is_free()
    scores = [int(Path(f"/proc/{one.pid}/oom_score_adj").read_text()) for one in (child, guard)]
    assert scores[0] == min(1000, scores[1] + 200), "memory is short: the trainer goes, the supervisor tells"
    os.kill(guard.pid, signal.SIGTERM)
    assert guarded.supervisor.wait(LONG_S) == 0
    assert mark.read_text() == "saved"
    assert [next(iter(report)) for report in guarded.reports()] == ["guard", "started", "exited", "empty"]
    ended = guarded.reported("exited")
    assert ended["exited"] == {"code": 0} and ended["peak_bytes"] > 1 << 20 and ended["left"] == 0
    assert guarded.lock_is_free()


def test_a_supervisor_killed_with_9_leaves_a_trainer_that_saves_and_no_orphan(
    start: Any, tmp_path: Path
) -> None:
    command, mark = polite(tmp_path)
    guarded = start(command)
    wait_for_text(mark, "working")
    tree = [guarded.guard(), guarded.child()]
    guarded.supervisor.kill()
    wait_gone(tree)
    assert mark.read_text() == "saved"
    assert guarded.lock_is_free()


def test_a_guard_killed_with_9_takes_its_trainer_with_it(start: Any, tmp_path: Path) -> None:
    command, mark = polite(tmp_path)
    guarded = start(command)
    wait_for_text(mark, "working")
    child = guarded.child()
    os.kill(guarded.guard().pid, signal.SIGKILL)
    wait_gone([child])
    assert mark.read_text() == "saved"
    wait_until(guarded.lock_is_free, what="the lock to be free")


def test_a_trainer_killed_with_9_is_reported_and_what_it_left_in_other_sessions_is_stopped(
    start: Any, tmp_path: Path
) -> None:
    pid_file = tmp_path / "orphan"
    guarded = start(["sh", "-c", LEAVES_ORPHAN + "wait", str(pid_file)], stop_time_s=0.5)
    orphan, child = orphan_in(pid_file), guarded.child()
    os.kill(child.pid, signal.SIGKILL)
    assert guarded.reported("exited")["exited"] == {"signal": 9}
    wait_until(guarded.lock_is_free, what="the lock to be free")
    assert not orphan.alive(), "the lock was free while the orphan lived"
    guarded.reported("empty")
    assert guarded.supervisor.wait(LONG_S) == 137


def test_the_supervisors_end_reaches_grandchildren_that_ignore_term_in_their_own_sessions(
    start: Any, tmp_path: Path
) -> None:
    pid_file = tmp_path / "orphan"
    # Double-forked: its parent is gone long before, so only the subreaper still knows it.
    guarded = start(["sh", "-c", f"({LEAVES_ORPHAN}); exec sleep 1000", str(pid_file)], stop_time_s=0.5)
    orphan, guard = orphan_in(pid_file), guarded.guard()
    wait_until(lambda: orphan in children_tree(guard.pid), what="the orphan to be the guard's")
    tree = children_tree(guard.pid)
    guarded.supervisor.kill()
    wait_gone([guard, *tree])
    assert guarded.lock_is_free()


def test_term_twice_does_not_shorten_the_stop_time(start: Any, tmp_path: Path) -> None:
    command, mark = polite(tmp_path)
    guarded = start(command)
    wait_for_text(mark, "working")
    guard, child = guarded.guard(), guarded.child()
    os.kill(child.pid, signal.SIGSTOP)  # slow to answer, and in need of a CONT
    os.kill(guard.pid, signal.SIGTERM)
    os.kill(guard.pid, signal.SIGTERM)
    assert guarded.supervisor.wait(LONG_S) == 0
    assert mark.read_text() == "saved"


def test_the_workers_of_a_program_are_asked_to_stop_once_the_program_has_ended(
    start: Any, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    guarded = start([sys.executable, "-c", HAS_WORKERS, str(mark)])
    wait_for_text(mark, "working")
    os.kill(guarded.guard().pid, signal.SIGTERM)
    assert guarded.supervisor.wait(LONG_S) == 0
    assert mark.read_text() == "saved, worker asked"


def test_a_guard_that_was_stopped_does_its_duty_when_it_runs_again(start: Any, tmp_path: Path) -> None:
    command, mark = polite(tmp_path)
    guarded = start(command)
    wait_for_text(mark, "working")
    guard, child = guarded.guard(), guarded.child()
    os.kill(guard.pid, signal.SIGSTOP)
    guarded.supervisor.kill()
    guarded.supervisor.wait(LONG_S)
    assert child.alive() and not guarded.lock_is_free()
    os.kill(guard.pid, signal.SIGCONT)
    wait_gone([guard, child])
    assert mark.read_text() == "saved"


def test_a_command_that_does_not_exist_is_reported_like_a_shell_does(start: Any) -> None:
    guarded = start(["/no/such/trainer"])
    assert guarded.supervisor.wait(LONG_S) == 127
    assert guarded.reported("exited")["exited"] == {"code": 127}


# Prints on both streams more than pipes and sockets hold, leaves a mark, and waits.
CHATTY = """
import pathlib, sys, time
for number in range(4000):
    sys.stdout.buffer.write(b"%d \\xff a line on stdout\\r" % number + b"." * 1000)
    print(number, "a line on stderr", file=sys.stderr)
sys.stdout.flush()
print("the last words", file=sys.stderr, flush=True)
mark = pathlib.Path(sys.argv[1])
mark.write_text("working")
while mark.exists(): time.sleep(0.01)
"""


def test_a_tree_prints_on_though_its_supervisor_is_stopped_and_nobody_reads_on(
    start: Any, tmp_path: Path
) -> None:
    """The supervisor in other places: a terminal that is held, a journal that does not read."""
    mark, output = tmp_path / "mark", tmp_path / "output.txt"
    reading, writing = os.pipe()
    environ = {**os.environ, "OUTPUT": str(output)}
    guarded = start([sys.executable, "-c", CHATTY, str(mark)], stderr=writing, stdout=writing, env=environ)
    os.close(writing)
    guarded.reported("started")
    os.kill(guarded.supervisor.pid, signal.SIGSTOP)
    wait_for_text(mark, "working")
    wait_until(lambda: output.read_bytes().endswith(b"the last words\n"), what="the end of the output")
    printed = output.read_bytes()
    assert b"0 a line on stderr" in printed and b"bytes are left out here" in printed
    assert 1 << 20 < len(printed) < 5 << 19
    assert os.read(reading, 100).startswith(printed[:100]), "passed on as long as there was room"
    os.kill(guarded.supervisor.pid, signal.SIGCONT)
    mark.unlink()
    assert guarded.supervisor.wait(LONG_S) == 0
    os.close(reading)


def test_the_last_words_of_a_tree_are_kept_before_its_guard_ends(start: Any, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    environ = {**os.environ, "OUTPUT": str(output)}
    guarded = start(["sh", "-c", "echo out; echo err >&2; kill -9 $$"], env=environ, stderr=subprocess.STDOUT)
    assert guarded.supervisor.wait(LONG_S) == 137
    assert output.read_text() == "out\nerr\n"


def test_two_streams_that_go_to_different_places_stay_apart_and_are_kept_together(
    start: Any, tmp_path: Path
) -> None:
    output, out, err = tmp_path / "output.txt", tmp_path / "out", tmp_path / "err"
    environ = {**os.environ, "OUTPUT": str(output)}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        guarded = start(["sh", "-c", "echo out; echo err >&2"], env=environ, stdout=stdout, stderr=stderr)
        assert guarded.supervisor.wait(LONG_S) == 0
    assert (out.read_text(), err.read_text()) == ("out\n", "err\n")
    assert sorted(output.read_text().splitlines()) == ["err", "out"]


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Lock]:
    with Lock.acquire(tmp_path / "lock", purpose="test") as lock:
        yield lock


def run_guard(lock: Lock, report_fd: int, command: list[str], parent: int | None = None) -> int:
    arguments = [str(parent or os.getpid()), str(lock.fileno()), str(report_fd), "5", "", "", "--", *command]
    guard = subprocess.Popen(
        [sys.executable, "-m", "stoker.kit.guard", *arguments],
        pass_fds=(lock.fileno(), report_fd),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        return guard.wait(LONG_S)
    finally:
        kill_tree(guard.pid)


def test_a_guard_whose_parent_is_already_gone_starts_nothing(lock: Lock, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    assert run_guard(lock, writing, ["touch", str(tmp_path / "started")], parent=1) == 75
    assert not (tmp_path / "started").exists()
    os.close(reading)
    os.close(writing)


def test_a_closed_report_pipe_does_not_hold_the_guard_up(lock: Lock) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert run_guard(lock, writing, ["true"]) == 0
    os.close(writing)


def test_a_full_report_pipe_does_not_hold_the_guard_up(lock: Lock) -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    assert run_guard(lock, writing, ["sh", "-c", "exit 3"]) == 3
    os.close(reading)
    os.close(writing)


def test_the_guard_is_small_and_needs_the_standard_library_alone() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import stoker.kit.guard; print(*sys.modules)"
    source = str(Path(__file__).parents[2] / "lib")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, source], capture_output=True, text=True, check=True
    )
    roots = {name.split(".")[0] for name in done.stdout.split()}
    assert roots - set(sys.stdlib_module_names) - {"__main__"} == {"stoker"}
    assert not roots & {"subprocess", "asyncio", "dataclasses", "pathlib", "logging"}, "big ones creep in"
