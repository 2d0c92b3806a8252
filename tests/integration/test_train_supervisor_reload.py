"""SIGHUP: the supervisor begins again with new code and a new file, and its trainer notices nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.kit.handover import VARIABLE
from stoker.kit.lock import read_holder
from stoker.kit.process import ProcessId, children_tree, signal_process
from stoker.store.layout import TRAIN_SUPERVISOR
from support.processes import RunningDaemon, wait_gone
from support.sites import write_site
from support.training import TrainPipeline, make_training, meanwhile, never_two
from support.waiting import LONG_S, wait_until

ENDLESS = {
    "train__steps": 100_000,
    "train__checkpoint": {"every": None, "every_steps": 100_000},
    "metrics__ports": {"download": 0, "shard": 0, "train": 0},
}


@pytest.fixture(autouse=True)
def _slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TEST_STEP_S", "0.1")  # thousands of them prove no more


@pytest.mark.parametrize("reloads", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_trainer_notices_no_reload_granted_or_refused_and_nothing_is_lost_or_left(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reloads: int
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    run = make_training(shard_sets, tmp_path / "reloaded", **ENDLESS)
    with heard(tmp_path / "notify") as words:
        with monkeypatch.context() as systemd:
            systemd.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
            daemon = run.start()
        try:
            reloaded(run, daemon, shadow, reloads)
        finally:
            assert daemon.stop() == 0
    assert run.events("trainer_exited")[-1]["exit_class"] == "stopped_as_asked"
    turns = [word for word in words if word in ("READY=1", "RELOADING=1", "MONOTONIC_USEC")]
    assert turns == ["READY=1"] + ["RELOADING=1", "MONOTONIC_USEC", "READY=1"] * (3 + reloads)


def reloaded(run: TrainPipeline, daemon: RunningDaemon, shadow: Path, reloads: int) -> None:
    """Reload it before it trains and then so often, refused twice between, and look at what is left of it."""
    hang_up(daemon)  # before its launch, or in the middle of it
    wait_until(lambda: run.events("reloaded"), what="the first reload")
    launched = wait_until(lambda: run.events("trainer_launched"), what="the launch")[0]
    wait_until(lambda: trains(run, launched["launch"]), what="its first step")  # it has told its numerics
    wait_for_a_cycle(run)  # or the new image has not opened all of its descriptors
    (trainer,) = run.trainers()
    launches, place, at_rest = run.run.launches.read_bytes(), metrics_place(run), at_rest_now(daemon, run)
    with (
        never_two(run.trainers),
        always_held(run.data.pipeline.layout.lock(TRAIN_SUPERVISOR), run.run.trainer_lock),
    ):
        be_refused(run, daemon, shadow / "prometheus_client.py")
        for number in range(reloads):
            reload(run, daemon, supervise__hang_limit=f"{20 + number}m")
            wait_until(lambda: has_no_more(daemon, run, at_rest), what="as few descriptors as before")
    assert run.trainers() == [trainer]
    assert run.run.launches.read_bytes() == launches
    assert metrics_place(run) == place
    counts = run.metrics()
    assert counts["stoker_events_total", "reloaded"] == reloads + 1
    assert counts["stoker_train_time_seconds_total", "down"] == 0.0
    assert counts["stoker_train_tokens_total",] == counts["stoker_train_history_tokens",] > 0
    assert [event["changed"] for event in run.events("reloaded")[1:]] == [["supervise.hang_limit"]] * reloads
    rows = [row["step"] for row in run.rows() if "loss" in row]
    assert rows == list(range(1, len(rows) + 1)), "every step once"

    signal_process(trainer, signal.SIGKILL)
    launched = wait_until(lambda: run.events("trainer_launched")[1:], what="the next launch")[0]
    assert run.events("trainer_exited")[0]["exit_class"] == "killed"
    wait_until(lambda: trains(run, launched["launch"]), what="its first step")
    environs = [Path(f"/proc/{child.pid}/environ").read_bytes() for child in run.processes()]
    assert environs
    assert not [environ for environ in environs if VARIABLE.encode() in environ]


def be_refused(run: TrainPipeline, daemon: RunningDaemon, module: Path) -> None:
    """Ask it for a file, and then for code, that it cannot begin with."""
    whole = run.data.file.read_text()
    run.data.file.write_text(whole + "trian: {}\n")
    hang_up(daemon)
    first = wait_until(lambda: run.events("reload_refused"), what="the refusal of the file")[0]
    assert f"data.yaml:{whole.count(chr(10)) + 1}: trian" in first["reason"]
    run.data.file.write_text(whole)
    module.write_text('raise ImportError("half an upgrade")\n')
    hang_up(daemon)
    second = wait_until(lambda: run.events("reload_refused")[1:], what="the refusal of the code")[0]
    assert "half an upgrade" in second["reason"]
    module.unlink()


# In the new image, before it has read what was handed over.
_SITE = f"""
import os, signal, threading, time
from pathlib import Path
def children(pid):
    return [int(each) for each in Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split()]
def act(word):
    try:
        os.unlink(os.path.join(os.path.dirname(__file__), word))
    except FileNotFoundError:
        return
    if word == "stop":  # heard by another thread, whose image ends before the loop looks
        others = [thread for thread in threading.enumerate() if thread.name == "metrics"]
        signal.pthread_kill(others[0].ident, signal.SIGTERM)
        time.sleep(0.2)
    elif word == "end":
        ours = children(os.getpid())
        guard = next(pid for pid in ours if b"kit.guard" in Path(f"/proc/{{pid}}/cmdline").read_bytes())
        trainer, = children(guard)
        os.kill(trainer, signal.SIGKILL)
        while Path(f"/proc/{{guard}}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.01)
    elif word == "fails":
        raise FileNotFoundError(2, "No such file or directory", "python")
    else:
        os.kill(os.getpid(), signal.SIGKILL)
if {VARIABLE!r} in os.environ:
    for word in ("end", "kill-begun"):
        act(word)
if "stokerd.train_supervisor" in " ".join(__import__("sys").orig_argv):
    execve = os.execve
    def watched(*words):
        act("kill-before")
        act("stop")
        act("fails")
        execve(*words)
    os.execve = watched
    from stoker.supervise.health.guarded import GuardedTrainer
    adopted = GuardedTrainer.adopted
    def taken(*words, **named):
        trainer = adopted(*words, **named)
        act("kill-taken")
        return trainer
    GuardedTrainer.adopted = taken
    # All that a kind of job of the supervisor needs besides its worker and its module: a row.
    from stokerd.supervision.jobs import ACTIVITIES
    from support.census import CENSUS
    ACTIVITIES["census"] = CENSUS
"""


@pytest.fixture
def acting(shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    """A run and its supervisor, and a function that has it reload and act at a place on the way."""
    site = tmp_path / "site"
    site.mkdir()
    write_site(site, _SITE)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{Path(__file__).parents[1]}")
    run = make_training(shard_sets, tmp_path / "acting", **ENDLESS)
    daemons = [run.start()]

    def act(word: str) -> None:
        (site / word).touch()
        run.wait_for_step(run.last_step() + 3)
        hang_up(daemons[-1])

    try:
        yield run, daemons, act
    finally:
        daemons[-1].stop()


def test_a_reload_may_be_killed_fail_meet_a_trainers_end_or_a_stop_and_a_job_of_one_row_is_handed_over(
    acting: tuple[Any, ...],
) -> None:
    run, daemons, act = acting
    resumed = begin_again_after(acting, "kill-begun")
    met = len(counted(run))
    first, before = wait_until(lambda: counted(run)[met:], what="the worker of a new kind of job")[0]
    assert before == []
    wait_until(lambda: run.metrics()["stoker_train_workers", "census"] == 1, what="it in the metrics")
    wait_until(lambda: "census" in run.data.status(TRAIN_SUPERVISOR)["workers"], what="it in the status")
    os.kill(first, signal.SIGKILL)
    second, before = wait_until(lambda: counted(run)[met + 1 :], what="another worker")[0]
    assert before == [first]

    reload(run, daemons[-1], train__on_checkpoint="sleep 601")
    _, before = wait_until(lambda: counted(run)[met + 2 :], what="a worker of the next image")[0]
    assert before == [first, second], "handed over"
    assert run.metrics()["stoker_train_worker_ends_total", "census", "killed"] == 1
    assert run.metrics()["stoker_train_checkpoint_step",] == resumed, "still proven"

    act("fails")
    (refused,) = wait_until(lambda: run.events("reload_refused"), what="the refusal")
    assert "No such file or directory" in refused["reason"]
    assert len(run.events("trainer_launched")) == 2

    (hook,) = wait_until(lambda: hooks(daemons[-1]), what="the command of a proven checkpoint")
    met = len(counted(run))
    act("end")
    wait_until(lambda: run.events("trainer_launched")[2:], what="the next launch")
    assert [event["exit_class"] for event in run.events("trainer_exited")][-1] == "killed"
    wait_until(lambda: [] in (before for _, before in counted(run)[met:]), what="what its phase resets")
    wait_until(lambda: hooks(daemons[-1]), what="the same command again")
    assert len(hooks(daemons[-1])) == 1 and not hook.alive()

    act("stop")
    assert daemons[-1].process.wait(LONG_S) == 0
    assert [event["event"] for event in run.events()][-2:] == ["trainer_exited", "daemon_stopped"]
    assert run.events("trainer_exited")[-1]["exit_class"] == "stopped_as_asked"
    assert run.checkpoints()[-1] == f"step-{run.last_step():09}"
    wait_gone(run.processes())


def begin_again_after(acting: tuple[Any, ...], place: str) -> int:
    """Kill the supervisor at a place on its way, and start it again; the step that the trainer saved."""
    run, daemons, act = acting
    with never_two(run.trainers):
        act(place)
        assert daemons[-1].process.wait(LONG_S) == -signal.SIGKILL
        launches = len(run.events("trainer_launched"))
        daemons.append(run.start())
        launched = wait_until(lambda: run.events("trainer_launched")[launches:], what="the next launch")
        resumed = int(launched[0]["resume_step"])
        assert resumed >= 3, "what the trainer saved"
    return resumed


@pytest.mark.long
@pytest.mark.parametrize("place", ["kill-before", "kill-taken"])
def test_after_a_kill_on_the_way_the_trainer_saves_and_the_next_start_goes_on(
    acting: tuple[Any, ...], place: str
) -> None:
    run, daemons, _ = acting
    begin_again_after(acting, place)
    assert daemons[-1].stop() == 0
    wait_gone(run.processes())


def counted(run: TrainPipeline) -> list[tuple[int, list[int]]]:
    """The workers of support.census, each with those of its launch that the supervisor remembered."""
    file = run.run.root / "census"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [(pid, before) for pid, before in map(json.loads, lines)]


def reload(run: TrainPipeline, daemon: RunningDaemon, **changes: Any) -> None:
    """Change the file and have it read; returns once the new image trains on."""
    before, pid = len(run.events("reloaded")), daemon.pid
    configure(run, **changes)
    hang_up(daemon)
    wait_until(lambda: run.events("reloaded")[before:], what="the reload")
    wait_for_a_cycle(run)
    run.wait_for_step(run.last_step() + 3)
    assert daemon.process.poll() is None
    assert run.data.status(TRAIN_SUPERVISOR)["pid"] == pid


def wait_for_a_cycle(run: TrainPipeline) -> None:
    """Wait until the image that runs now has been through a cycle: its metrics are NaN before."""
    wait_until(lambda: run.metrics()["stoker_train_step",] >= 0, what="its first cycle")


def trains(run: TrainPipeline, launch: str) -> bool:
    shown = run.data.status(TRAIN_SUPERVISOR)
    return shown["launch"] == launch and shown["phase"] == "train"


def hang_up(daemon: RunningDaemon) -> None:
    daemon.process.send_signal(signal.SIGHUP)


def configure(run: TrainPipeline, **changes: Any) -> None:
    body = yaml.safe_load(run.data.file.read_text())
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        section = body
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    run.data.file.write_text(yaml.safe_dump(body))


def hooks(daemon: RunningDaemon) -> list[ProcessId]:
    """The commands of train.on_checkpoint at work."""
    return [
        process
        for process in children_tree(daemon.pid)
        if Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"sleep\x00601\x00"
    ]


def metrics_place(run: TrainPipeline) -> str:
    holder = read_holder(run.data.pipeline.layout.lock(TRAIN_SUPERVISOR))
    assert holder is not None
    return str(holder.extra["metrics"])


def has_no_more(daemon: RunningDaemon, run: TrainPipeline, before: Counter[str]) -> bool:
    """Whether it has as few descriptors as before, but for a file that it had not opened then."""
    now = at_rest_now(daemon, run)
    return now <= before | Counter(set(now))


def at_rest_now(daemon: RunningDaemon, run: TrainPipeline) -> Counter[str]:
    """Its descriptors by kind or file, once it has no child but the guard, and no zombie."""

    def look() -> Counter[str]:
        found = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        if found != [str(guard.pid) for guard in run.guards()]:
            return Counter()
        with contextlib.suppress(FileNotFoundError):
            open_files = [str(one.readlink()) for one in Path(f"/proc/{daemon.pid}/fd").iterdir()]
            return Counter(re.sub(r":\[\d+\]$", "", name) for name in open_files)
        return Counter()

    return wait_until(look, what="a supervisor at rest")


@contextlib.contextmanager
def always_held(*locks: Path) -> Iterator[None]:
    """Try to take these locks all the time, as a second supervisor would; fail if one was ever free."""
    free = list[Path]()

    def look() -> None:
        for lock in locks:
            descriptor = os.open(lock, os.O_RDWR)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.append(lock)
            os.close(descriptor)

    with meanwhile(look, 0.002):
        yield
    assert not free


@contextlib.contextmanager
def heard(path: Path) -> Iterator[list[str]]:
    """What comes to a socket meanwhile, as systemd would read it; of a time its key alone."""
    words = list[str]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))

        def listen() -> None:
            while (text := systemd.recv(4096).decode()) != "end":
                words.extend(line.split("=")[0] if "USEC" in line else line for line in text.splitlines())

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield words
        finally:
            systemd.sendto(b"end", str(path))
            listener.join()
