"""The client beside a trainer of the user's own: it tells, it keeps what counts, it never disturbs."""

from __future__ import annotations

import ast
import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.cli.main import cli
from stoker.kit.process import ProcessId
from stoker.supervise.external import stoker_client
from stoker.supervise.external.stoker_client import MOST_BYTES, Stoker
from stoker.supervise.health.stacks import take
from stoker.supervise.health.trainer_protocol import TrainerView, heard, parse
from support.processes import kill_tree
from support.trainer_run import Inbox
from support.waiting import LONG_S

CLIENT = Path(stoker_client.__file__)
Environ = dict[str, str]


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(tmp_path / "s")
    yield inbox
    inbox.close()


@pytest.fixture
def environ(tmp_path: Path, inbox: Inbox) -> Environ:
    """What a supervisor gives to a launch."""
    (tmp_path / "log").mkdir()
    return {
        "STOKER_NOTIFY_SOCKET": str(inbox.path),
        "STOKER_LAUNCH": "l1",
        "STOKER_RUN_DIR": str(tmp_path),
        "STOKER_RESUME_FROM": "",
        "STOKER_RESUME_STEP": "0",
        "STOKER_MICRO_BATCH": "",
    }


@pytest.fixture
def begin() -> Iterator[Callable[[Environ], Stoker]]:
    """Begins clients in this process, and takes back what they set in it."""
    before, begun = signal.getsignal(signal.SIGTERM), list[Stoker]()

    def client(env: Environ) -> Stoker:
        begun.append(Stoker(env))
        return begun[-1]

    yield client
    signal.signal(signal.SIGTERM, before)
    faulthandler.unregister(signal.SIGUSR2)
    for client_ in begun:
        atexit.unregister(client_._last_words)


Begin = Callable[[Environ], Stoker]


def test_it_says_what_the_supervisor_understands(
    inbox: Inbox, environ: Environ, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stoker_client, "INTERVAL_S", 0)
    began, stoker = time.time(), begin({**environ, "RANK": "0"})
    stoker.phase("train", step=3, loss=2.5)
    stoker.tell(val_loss=2.75, lr=None, checkpoint="a/../ckpt.pt")
    stoker.phase("eval", done=7)
    stoker.phase("checkpoint", done=True)
    stoker.phase("checkpoint", done=True)
    stoker.finished()
    view = TrainerView("l1", 0.0, 0.0)
    for words in inbox.read():
        said = parse("\n".join(f"{key}={value}" for key, value in words.items()).encode(), "l1")
        assert said is not None
        view = heard(view, said, 1.0)
    assert view.announced == {0: (os.getpid(), int(signal.SIGUSR2))}
    assert (view.phase, view.step, view.loss, view.val_loss) == ("checkpoint", 3, 2.5, 2.75)
    assert view.done == {"eval": 7, "checkpoint": 2}
    assert view.finished == "finished"
    told = next(words for words in inbox.words if "CHECKPOINT" in words)
    assert (told["CHECKPOINT"], told["STEP"]) == (str(Path.cwd() / "ckpt.pt"), "3")
    assert began <= float(told["AT"]) <= time.time()


def test_it_hands_on_what_the_supervisor_gives(environ: Environ, begin: Begin) -> None:
    first = begin(environ)
    assert (first.resume, first.resume_step, first.micro_batch, first.stop) == (None, 0, None, False)
    given = {"STOKER_RESUME_FROM": "/c/ckpt.pt", "STOKER_RESUME_STEP": "40", "STOKER_MICRO_BATCH": "4"}
    later = begin({**environ, **given})
    assert (later.resume, later.resume_step, later.micro_batch) == ("/c/ckpt.pt", 40, 4)


def test_without_a_supervisor_nothing_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    stoker = begin({})
    stoker.phase("train", step=1, loss=2.0)
    stoker.tell(checkpoint="ckpt.pt")
    stoker.finished()
    assert signal.getsignal(signal.SIGTERM) is before and not list(tmp_path.iterdir())
    assert (stoker.resume, stoker.micro_batch, stoker.stop) == (None, None, False)
    assert not faulthandler.unregister(signal.SIGUSR2), "no handler for stacks"


@pytest.mark.parametrize(
    "wrong",
    [
        {"STOKER_NOTIFY_SOCKET": "/nonexistent/socket"},
        {"STOKER_NOTIFY_SOCKET": "/" + "x" * 200},
        {"STOKER_RUN_DIR": "/nonexistent"},
        {"STOKER_RUN_DIR": "/proc"},
        {"STOKER_RESUME_STEP": "many", "STOKER_MICRO_BATCH": "-1", "RANK": "first", "STOKER_LAUNCH": ""},
    ],
    ids=["no socket", "no address", "no run", "read-only", "no numbers"],
)
def test_a_bad_environment_raises_nothing(wrong: Environ, environ: Environ, begin: Begin) -> None:
    stoker = begin({**environ, **wrong})
    stoker.phase("train", step=1)
    stoker.tell(checkpoint="ckpt.pt")
    stoker.finished()
    stoker._last_words()
    assert (stoker.resume_step, stoker.micro_batch) == (0, None)


def test_a_supervisor_that_went_away_is_no_error_and_no_wait(
    inbox: Inbox, environ: Environ, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stoker_client.time, "sleep", lambda _: pytest.fail("it waits for nobody"))
    stoker = begin(environ)
    inbox.close()
    stoker.tell(checkpoint="ckpt.pt")
    stoker._last_words()


def test_in_a_flood_against_a_stopped_supervisor_no_checkpoint_is_lost(
    inbox: Inbox, environ: Environ, begin: Begin
) -> None:
    """Nor who is asked for stacks; and the first word after it tells the phase and the step of now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
        while other.sendto(b"LAUNCH=l0", socket.MSG_DONTWAIT, str(inbox.path)):
            pass
    stoker = begin(environ)
    for step in range(1, 4001):
        stoker.phase("train", step=step, loss=1 / step)
        if step % 100 == 0:
            stoker.phase("checkpoint")
            stoker.tell(checkpoint=f"/c/ckpt-{step}.pt")
    assert len(inbox.read()) < 4000, "the queue was full"
    while stoker._kept:
        stoker.phase("train", step=4001)
        inbox.read()  # it reads again
    told = [(word["CHECKPOINT"], word["STEP"]) for word in inbox.words if "CHECKPOINT" in word]
    assert told == [(f"/c/ckpt-{step}.pt", str(step)) for step in range(100, 4001, 100)]
    assert sum("STACKS" in word for word in inbox.words) == 1
    assert (inbox.read()[-1]["PHASE"], inbox.words[-1]["STEP"]) == ("train", "4001")


TELLS_AND_ENDS = """
from stoker_client import Stoker
stoker = Stoker()
for step in range(1, 3001):
    stoker.phase("train", step=step, loss=2.0)
stoker.tell(checkpoint="/c/last.pt")
stoker.finished("steps")
stoker.phase("train", step=3001)
print("told", flush=True)
"""


def test_what_is_kept_is_sent_at_exit(inbox: Inbox, environ: Environ, tmp_path: Path) -> None:
    """A supervisor that reads again while the trainer ends hears it all."""
    (tmp_path / "stoker_client.py").write_bytes(CLIENT.read_bytes())
    command = [sys.executable, "-c", TELLS_AND_ENDS]
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None and trainer.stdout.readline() == b"told\n"
        assert inbox.until_end(trainer) == 0
    told = [(word.get("CHECKPOINT"), word.get("FINISHED")) for word in inbox.read()[-3:]]
    assert told == [("/c/last.pt", None), (None, "steps"), (None, None)]
    assert inbox.words[-1]["STEP"] == "3001"


def test_the_step_alone_is_told_at_most_ten_times_a_second(
    inbox: Inbox, environ: Environ, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(stoker_client.time, "monotonic", lambda: now)
    stoker = begin(environ)
    for step in range(30):
        now = 101.0 + step * 0.03125
        stoker.phase("train", step=step)
    stoker.tell(loss=2.5)
    assert [int(word["STEP"]) for word in inbox.read()[1:]] == [0, 4, 8, 12, 16, 20, 24, 28, 29]
    assert inbox.words[-1]["LOSS"] == "2.5"


def test_threads_may_tell_at_once(inbox: Inbox, environ: Environ, begin: Begin) -> None:
    stoker = begin(environ)

    def save(thread: int) -> None:
        for number in range(200):
            stoker.tell(checkpoint=f"/c/{thread}-{number}")

    threads = [threading.Thread(target=save, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or stoker._kept:
        inbox.read()
        stoker._drain()
    told = [word["CHECKPOINT"] for word in inbox.read() if "CHECKPOINT" in word]
    assert sorted(told) == sorted(f"/c/{thread}-{number}" for thread in range(4) for number in range(200))


class Unprintable:
    def __float__(self) -> float:
        raise RuntimeError("a device is lost")


class Tensor:
    def __float__(self) -> float:
        return 2.5


def test_a_value_becomes_one_line_or_is_left_out(inbox: Inbox, environ: Environ, begin: Begin) -> None:
    stoker = begin(environ)
    stoker.tell(error="first\nLAUNCH=other\u2028" + "é" * 9999, loss=Tensor(), lr=Unprintable())
    stoker.tell(checkpoint=Unprintable(), loss="\udc80", grad_norm=float("nan"))
    long, odd = inbox.read()[-2:]
    assert long["LAUNCH"] == "l1" and long["ERROR"].startswith("first LAUNCH=other é")
    assert sum(len(f"{key}={value}\n".encode()) for key, value in long.items()) <= MOST_BYTES + 1
    assert "LR" not in long and "CHECKPOINT" not in odd
    assert (odd["LOSS"], odd["GRAD_NORM"]) == ("?", "nan")
    stoker.tell(loss=Tensor())
    assert inbox.read()[-1]["LOSS"] == "2.5"
    path = "/out/two  blanks, a\ttab and a\u2028separator.pt"
    stoker.tell(checkpoint=path)
    assert inbox.read()[-1]["CHECKPOINT"] == path


def test_a_stop_reaches_it_and_whoever_handled_it_before_and_later(environ: Environ, begin: Begin) -> None:
    """Lightning sets its handler later and calls the one that it finds."""
    asked = list[str]()
    signal.signal(signal.SIGTERM, lambda *_: asked.append("before"))
    stoker = begin(environ)
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)
    signal.signal(signal.SIGTERM, lambda *of: (asked.append("later"), ours(*of))[0])
    signal.raise_signal(signal.SIGTERM)
    assert stoker.stop and asked == ["later", "before"]


def test_a_worker_that_it_forks_ends_by_term_as_before(environ: Environ, begin: Begin) -> None:
    begin(environ)
    reading, writing = multiprocessing.Pipe(duplex=False)

    def work() -> None:
        writing.send("works")
        signal.pause()

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    assert reading.recv() == "works"
    worker.terminate()
    worker.join(10)
    worker.kill()
    worker.join(LONG_S)
    assert worker.exitcode == -signal.SIGTERM


def test_off_the_main_thread_it_says_that_no_stop_reaches_it(
    inbox: Inbox, environ: Environ, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=begin, args=(environ,))
    thread.start()
    thread.join()
    assert (
        "not called in the main thread: a stop ends training without a checkpoint" in capsys.readouterr().err
    )
    assert signal.getsignal(signal.SIGTERM) is before
    assert [word["PID"] for word in inbox.read()] == [str(os.getpid())]


HOLDS_THE_GIL = """
import ctypes
from stoker_client import Stoker
stoker = Stoker()
def all_reduce():
    stoker.phase("train", step=1)
    while True: ctypes.PyDLL(None).pause()
all_reduce()
"""


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK"])
def test_each_rank_dumps_its_stacks_also_while_it_holds_the_gil(
    variable: str, inbox: Inbox, environ: Environ, tmp_path: Path
) -> None:
    (tmp_path / "stoker_client.py").write_bytes(CLIENT.read_bytes())
    command = [sys.executable, "-c", HOLDS_THE_GIL]
    trainer = subprocess.Popen(command, env={**environ, variable: "3"}, cwd=tmp_path)
    try:
        while not any(word["PHASE"] == "train" for word in inbox.read()):
            assert trainer.poll() is None
        words = next(word for word in inbox.words if "STACKS" in word)
        assert (words["RANK"], words["PID"]) == ("3", str(trainer.pid))
        file = tmp_path / "log/stacks-l1-3.txt"
        found = take([ProcessId.of(trainer.pid)], {3: (trainer.pid, int(words["STACKS"]))}, {3: file})
        assert "in all_reduce" in found[3]
    finally:
        kill_tree(trainer.pid)
        trainer.wait()


def test_the_printed_file_needs_python_3_8_and_the_standard_library() -> None:
    printed = CliRunner().invoke(cli, ["client"])
    assert printed.exit_code == 0 and printed.output == CLIENT.read_text()
    tree = ast.parse(printed.output, feature_version=(3, 8))
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert {str(name).split(".")[0] for name in names} <= sys.stdlib_module_names
