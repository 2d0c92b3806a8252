"""Workers made by a fork server, and what becomes of them and of their daemon when it fails."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.kit import fork_worker
from stoker.kit.fork_server import FORK_SERVER, ForkServer
from stoker.kit.process import ProcessId, processes_with_environment
from stoker.kit.wait import Waiter
from stoker.kit.worker import WorkerExit, WorkerNotStarted
from stoker.kit.worker_launch import CREW_VARIABLE
from stokerd import crew as crew_module
from stokerd import fresh_start
from stokerd.crew import Crew
from stokerd.fresh_start import Preparation
from stokerd.loads import PRELOAD, crew_name
from stokerd.shard_tasks import FORKED, MODULES
from stokerd.stage_shard import early_server
from support.crews import heard
from support.processes import wait_gone
from support.tokenizers import tokenizer_like
from support.waiting import LONG_S, wait_until

TESTS = str(Path(__file__).parents[1])
WARM = "support.warm_worker"
STAGE, SAMPLE, BUILD = (MODULES[each][0] for each in ("stage", "sample", "build"))


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]))
    waiter = Waiter()
    made = Crew(str(tmp_path), waiter)
    made.told: list[str] = []  # type: ignore[attr-defined, misc]
    made.tell = lambda event, **fields: made.told.append(event)  # type: ignore[attr-defined]
    made.forked = (WARM,)
    yield made
    monkeypatch.setattr(crew_module, "STOP_GRACE_S", 0.1)
    made.stop()
    waiter.close()


def server_of(crew: Crew) -> int:
    """The pid of a fork server that is ready."""
    crew.warm_up(FORK_SERVER)
    (pid,) = crew.pids
    return pid


def words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_a_forked_worker_is_a_child_of_its_daemon_with_a_name_and_a_group_of_its_own(
    crew: Crew, tmp_path: Path
) -> None:
    server = server_of(crew)
    job = crew.start("build", "a", WARM, {"do": "work until stopped"}, quiet_s=LONG_S, warm=True)
    wait_until(lambda: [said for _, said, _ in crew.hear() if said], what="its first word")
    pid = job.worker.pid
    assert pid != server and parent(pid) == os.getpid() and os.getpgid(pid) == pid
    assert words(pid) == [sys.executable, "-P", "-m", WARM]
    assert words(server)[:4] == [sys.executable, "-P", "-m", FORK_SERVER]
    marked = processes_with_environment(CREW_VARIABLE, str(tmp_path))  # how leftovers are found
    assert {each.pid for each in marked} == {pid, server}
    open_there = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    assert not any(name.startswith("socket:") for name in open_there)  # not the server's way to its daemon
    job.worker.ask_to_stop(LONG_S)
    ended = heard(crew, "a")
    assert (ended.code, (ended.error or {})["message"]) == (75, "stopped as asked")
    assert not Path(f"/proc/{pid}").exists()  # its daemon reaped it


DAEMON = f"""
import select, sys
from stoker.kit.wait import Waiter
from stokerd.crew import Crew
crew = Crew(sys.argv[1], Waiter())
crew.forked = ({WARM!r},)
crew.warm_up({FORK_SERVER!r})
server, = crew.pids
job = crew.start("build", "a", {WARM!r}, {{"do": "hang"}}, quiet_s=60, warm=True)
while not any(said for _, said, _ in crew.hear()): crew.wait(1)
print(server, job.worker.pid, flush=True)
select.select([], [], [])
"""


def test_a_forked_worker_and_its_server_die_with_a_daemon_killed_by_9(crew: Crew, tmp_path: Path) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(tmp_path)], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    left = [ProcessId.of(int(pid)) for pid in daemon.stdout.readline().split()]
    assert len(left) == 2 and all(each.alive() for each in left)
    daemon.kill()
    daemon.wait(LONG_S)
    wait_gone(left)
    daemon.stdout.close()


def test_when_the_server_is_killed_the_next_worker_is_started_by_itself(crew: Crew) -> None:
    os.kill(server := server_of(crew), signal.SIGKILL)
    wait_until(lambda: not ProcessId.of(server).alive())
    job = crew.start("build", "a", WARM, {"do": "pid"}, quiet_s=LONG_S, warm=True)
    assert heard(crew, "a").kind == "finished"
    list(crew.hear())
    assert job.worker.pid in crew.pids and server not in crew.pids
    assert crew.told == ["idle_worker_died"]  # type: ignore[attr-defined]


def test_a_server_that_does_not_answer_is_ended_and_not_asked_again(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.kit.fork_server.ANSWER_S", 0.2)
    server = ProcessId.of(server_of(crew))
    os.kill(server.pid, signal.SIGSTOP)
    for subject in ("a", "b"):
        crew.start("build", subject, WARM, {"do": "pid"}, quiet_s=LONG_S, warm=True)
    assert heard(crew, "a").kind == "finished"
    wait_until(lambda: list(crew.hear()) is not None and not server.alive(), what="the end of the server")


def test_a_worker_that_was_asked_to_stop_is_given_no_task(crew: Crew) -> None:
    server = server_of(crew)
    asked = crew._pool.look(FORK_SERVER)
    assert asked is not None and asked.pid == server
    os.kill(server, signal.SIGSTOP)
    asked.ask_to_stop(LONG_S)
    assert crew._pool.take(FORK_SERVER) is None and not crew.idle(FORK_SERVER)


def test_a_server_with_threads_is_none(crew: Crew) -> None:
    crew.start("prepare", "/s", FORK_SERVER, {"module": "support.threaded"}, quiet_s=LONG_S, warm=True)
    ended = heard(crew, "/s")
    assert ended.kind == "failed" and "1 threads running" in ended.reason()
    assert not crew.idle(FORK_SERVER)


@pytest.mark.parametrize("fork", [1, 2])
def test_without_room_for_a_process_the_server_says_so_and_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, fork: int
) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forks = iter([os.fork] * (fork - 1) + [no_room])
    monkeypatch.setattr(os, "fork", lambda: next(forks)())  # noqa: PLW0108 - another one each time
    with near, far, Path(os.devnull).open("rb") as nothing:
        request = json.dumps({"module": WARM, "parent": os.getpid()}).encode()
        socket.send_fds(near, [request], [nothing.fileno()] * 3)
        fork_worker.Forks(far).serve()
        assert json.loads(near.recv(1000)) == {"errno": errno.EAGAIN}
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def no_room() -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


REAPS = """
import subprocess, sys
from pathlib import Path
from stoker.kit.fork_server import reap_adopted
from support.waiting import wait_until
child = subprocess.Popen([sys.executable, "-c", ""])
stat = Path(f"/proc/{child.pid}/stat")
wait_until(lambda: ") Z " in stat.read_text(), what="its end")
reap_adopted({child.pid})
assert stat.exists()
reap_adopted(())
assert not stat.exists()
reap_adopted(())
"""


def test_an_ended_child_that_nobody_waits_for_is_reaped_and_no_other() -> None:
    subprocess.run([sys.executable, "-c", REAPS], env={**os.environ, "PYTHONPATH": TESTS}, check=True)


# What the loop has loaded


def preparation(crew: Crew, tokenizer: Path | None, *, sampler: bool = True) -> Preparation:
    def preload(asked: Path | None) -> dict[str, Any]:
        more = {} if asked is None else {"engine": "fastokens", "tokenizer_file": str(asked)}
        return {"module": PRELOAD, **more}

    tasks = SimpleNamespace(
        preload=preload, prepare=lambda asked: {"prepare": True, "tokenizer_file": str(asked)}
    )
    pinning = SimpleNamespace(pin=None, tokenizer_file=tokenizer)
    return Preparation(crew, tasks, pinning, sampler=sampler)  # type: ignore[arg-type]


def loaded(crew: Crew, made: Preparation) -> WorkerExit:
    """How the only one that loads ended, told as the loop tells it."""
    (job,) = [job for job in crew.jobs if job.activity == "prepare"]
    ended = heard(crew, job.subject)
    made.ended(job, ended)
    return ended


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer_like("gpt2"))
    return file


def test_modules_then_the_engine_then_the_sampler_are_loaded_once(crew: Crew, tokenizer: Path) -> None:
    made = preparation(crew, tokenizer)
    made.begin()
    made.go_on()  # while it loads
    assert made.makes_wait("stage") and not made.makes_wait("move" if "move" in MODULES else "sync")
    assert loaded(crew, made).result == {"status": "prepared"}
    assert crew.idle(STAGE) == 1 and not made.makes_wait("stage")
    assert made.makes_wait("build") and made.makes_wait("sample") and made.makes_wait("tokenizer")
    assert loaded(crew, made).result == {"status": "prepared"}
    assert made.makes_wait("sample") and not made.makes_wait("build")
    assert loaded(crew, made).result == {"status": "prepared", "reason": ""}
    made.go_on()
    assert not crew.jobs and crew.idle(SAMPLE) == crew.idle(FORK_SERVER) == 1
    assert not any(made.makes_wait(each) for each in ("stage", "sample", "build"))


def test_a_tokenizer_that_comes_later_is_loaded_then(crew: Crew, tokenizer: Path) -> None:
    made = preparation(crew, None, sampler=False)
    made.begin()
    loaded(crew, made)
    made.go_on()
    assert not crew.jobs
    made._pinning.tokenizer_file = tokenizer  # type: ignore[misc]
    made.go_on()
    assert loaded(crew, made).result == {"status": "prepared"}


def test_a_server_that_cannot_load_is_not_tried_again(crew: Crew, tmp_path: Path) -> None:
    made = preparation(crew, tmp_path / "missing.json")
    made.begin()
    loaded(crew, made)
    made.go_on()
    assert loaded(crew, made).result is None
    crew.start("stage", "a", WARM, {"do": "burn"}, quiet_s=LONG_S)
    made.go_on()
    assert [job.subject for job in crew.jobs] == ["a"]
    assert not made.makes_wait("build")


def test_a_server_that_is_killed_while_it_loads_is_tried_again_a_few_times(
    crew: Crew, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_start, "_RETRY_S", 0.0)
    made = preparation(crew, tokenizer, sampler=False)
    made.begin()
    begun = []
    crew.start("stage", "a", WARM, {"do": "burn"}, quiet_s=LONG_S)
    for _ in range(3):
        os.kill(crew["/prepare"].worker.pid, signal.SIGKILL)
        assert loaded(crew, made).kind == "killed"
        made.go_on()
        begun.append("/prepare" in crew)
    assert begun == [True, True, False]
    assert crew.told == ["fork_server_given_up"]  # type: ignore[attr-defined]


def test_a_server_that_was_killed_is_not_tried_again_at_once(crew: Crew, tokenizer: Path) -> None:
    made = preparation(crew, tokenizer)
    made.begin()
    crew.start("stage", "a", WARM, {"do": "burn"}, quiet_s=LONG_S)
    os.kill(crew["/prepare"].worker.pid, signal.SIGKILL)
    loaded(crew, made)
    made.go_on()
    assert not made.loading


def test_a_server_stays_as_long_as_a_file_is_staged_and_not_for_one_that_hangs(
    crew: Crew, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = preparation(crew, tokenizer, sampler=False)
    made.begin()
    loaded(crew, made)
    made.go_on()
    loaded(crew, made)
    job = crew.start("stage", "a", WARM, {"do": "burn"}, quiet_s=LONG_S)
    began = time.monotonic()
    with monkeypatch.context() as later:
        later.setattr(time, "monotonic", lambda: began + 50.0)
        made.go_on()
        crew._pool.tend(began + 70.0)
        stayed = crew.idle(FORK_SERVER)
        job.abandoned = True
        made.go_on()
        crew._pool.tend(began + 120.0)
        left = crew.idle(FORK_SERVER)
        made.go_on()
    assert (stayed, left, made.loading) == (1, 0, frozenset())


def test_no_worker_that_needs_the_engine_begins_before_the_server_was_told_to_load_it(
    crew: Crew, tokenizer: Path
) -> None:
    made = preparation(crew, None)
    made.begin()
    loaded(crew, made)
    assert not made.makes_wait("sample")
    made._pinning.tokenizer_file = tokenizer  # type: ignore[misc]
    waits = [each for each in ("stage", "tokenizer", "sample", "build") if made.makes_wait(each)]
    assert waits == ["tokenizer", "sample", "build"]


def test_a_server_ends_at_a_term_while_it_loads(crew: Crew) -> None:
    crew.start("prepare", "/s", FORK_SERVER, {"module": "support.endless"}, quiet_s=LONG_S, warm=True)
    server = crew["/s"].worker
    children = f"/proc/{server.pid}/task/{server.pid}/children"
    wait_until(lambda: Path(children).read_text(), what="the load")
    server.ask_to_stop(LONG_S)
    assert heard(crew, "/s").signal == signal.SIGTERM


def test_a_server_may_hold_more_than_other_idle_workers(crew: Crew) -> None:
    crew.recycle_rss_bytes = 1 << 20
    made = preparation(crew, None)
    made.begin()
    loaded(crew, made)
    assert crew.idle(FORK_SERVER) == 1


def test_a_server_that_was_idle_for_long_comes_back_with_the_next_file(crew: Crew) -> None:
    made = preparation(crew, None)
    made.begin()
    loaded(crew, made)
    crew._pool.tend(time.monotonic() + 61.0)
    made.go_on()
    assert not crew.jobs
    crew.start("stage", "a", WARM, {"do": "burn"}, quiet_s=LONG_S)
    made.go_on()
    assert [job.activity for job in crew.jobs] == ["stage", "prepare"]


def test_without_room_for_a_process_files_wait_for_their_own_workers(
    crew: Crew, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any, **options: Any) -> None:
        raise WorkerNotStarted("no room for another process")

    monkeypatch.setattr(crew, "_start", nothing)
    made = preparation(crew, tokenizer)
    made.begin()
    made.go_on()
    assert not crew.jobs and not made.makes_wait("build")


def test_without_room_for_its_socket_it_is_as_without_room_for_a_process(
    crew: Crew, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    made = preparation(crew, tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", nothing)
        made.begin()
    assert not crew.jobs and not made.makes_wait("build")


# A server that is there before its daemon


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ("name: a\nstate: /x/y\n", "/x/y"),
        ('state:   "/x/a b"  # here\n', "/x/a b"),
        ("state: /x # there\n", "/x"),
        ("other:\n  state: /x\n", None),
        ("state:\n", None),
        ("", None),
    ],
)
def test_the_state_directory_is_guessed_from_the_file(tmp_path: Path, lines: str, state: str | None) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(lines)
    server = early_server(["--once", str(file)])
    assert (server and server.crew) == (state and crew_name(state))
    if server is not None:
        server.stop(0.0)


@pytest.mark.parametrize("words", [[], ["--help"], ["missing.yaml"], ["."], [".yaml"]])
def test_where_no_file_is_named_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".yaml").mkdir()
    assert early_server(words) is None


def early(tmp_path: Path, state: str) -> ForkServer:
    file = tmp_path / "p.yaml"
    file.write_text(f"state: {state}\n")
    server = early_server([str(file)])
    assert server is not None
    return server


def test_a_server_of_this_crew_is_adopted_and_no_leftover(crew: Crew, tmp_path: Path) -> None:
    server = early(tmp_path, "/x")
    crew._name = server.crew
    made = preparation(crew, None)
    made.adopt(server)
    assert crew.end_leftovers() == 0
    made.begin()  # it has begun
    assert loaded(crew, made).result == {"status": "prepared"} and crew.pids == {server.pid}
    assert crew.idle(FORK_SERVER) == 1


def test_an_adopted_server_loads_no_engine_before_there_are_files(
    crew: Crew, tmp_path: Path, tokenizer: Path
) -> None:
    server = early(tmp_path, "/x")
    crew._name = server.crew
    made = preparation(crew, tokenizer)
    made.adopt(server)
    loaded(crew, made)
    made.go_on()
    assert not crew.jobs and not made.makes_wait("build")
    made.begin()
    made.go_on()
    assert made.loading == {FORK_SERVER}


def test_a_server_for_another_state_directory_is_ended(crew: Crew, tmp_path: Path) -> None:
    server = early(tmp_path, "/x")
    made = preparation(crew, None)
    made.adopt(server)
    assert not crew.jobs and not Path(f"/proc/{server.pid}").exists()


def test_a_daemon_that_is_refused_leaves_no_server(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"state: {tmp_path}/state\nmisspelt: 1\n")
    command = [sys.executable, "-c", "import sys; from stokerd.stage_shard import main; sys.exit(main())"]
    ended = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 78 and "misspelt" in ended.stderr
    name = crew_name(tmp_path / "state")
    wait_until(lambda: not processes_with_environment(CREW_VARIABLE, name), what="the server's end")


def test_what_a_server_loads_is_what_it_forks_for(crew: Crew) -> None:
    preparation(crew, None)
    assert set(crew.forked) == set(FORKED) == {STAGE, SAMPLE, BUILD, MODULES["tokenizer"][0]}
