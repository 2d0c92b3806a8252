"""A trainer of the user's own under a real supervisor: what it prints is read, and nothing it does harms."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.store.layout import TRAIN_SUPERVISOR
from support.external_trainer import make_external
from support.training import TrainPipeline
from support.waiting import wait_until


def rows(run: TrainPipeline) -> list[dict[str, object]]:
    return [json.loads(line) for line in run.run.metrics.read_text().splitlines()]


FLOODS = r"""
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
to, launch = os.environ["STOKER_NOTIFY_SOCKET"], os.environ["STOKER_LAUNCH"].encode()
words = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
words.setblocking(False)
printed = 0
while True:
    printed += os.write(1, b"\xff\xfe\x1b[31m no line ends" * 5000)
    printed += os.write(1, b"\niter 41: loss 2.0\n")
    for word in (b"", b"\xff", b"x" * 9000, b"STEP=-1\nDONE=x", b"STEP=" + b"9" * 4000):
        for _ in range(50):
            try:
                words.sendto(b"LAUNCH=" + launch + b"\n" + word, to)
            except OSError:
                break
    with open("printed.new", "w") as mark:
        mark.write(str(printed))
    os.replace("printed.new", "printed")
    time.sleep(0.01)
"""


def test_a_flood_neither_blocks_the_trainer_while_the_supervisor_stands_still_nor_the_supervisor(
    tmp_path: Path,
) -> None:
    run = make_external(tmp_path, FLOODS, supervise__stop_time="1s")

    def printed() -> int:
        mark = tmp_path / "printed"
        return int(mark.read_text()) if mark.exists() else 0

    daemon = run.start()
    try:
        wait_until(lambda: printed() > 1 << 20, what="the flood")
        wait_until(lambda: run.data.status(TRAIN_SUPERVISOR).get("step") == 41, what="the step that was read")
        os.kill(daemon.pid, signal.SIGSTOP)
        before = printed()
        wait_until(lambda: printed() > before + (4 << 20), what="four times what a pipe holds")
        os.kill(daemon.pid, signal.SIGCONT)
        assert run.data.status(TRAIN_SUPERVISOR)["steps_from"] == "nanoGPT"
    finally:
        assert daemon.stop() == 0
    assert run.processes() == []
    assert [one["step"] for one in run.events("trainer_exited")] == [41]
    assert (run.run.output(run.events("trainer_launched")[0]["launch"])).stat().st_size < 3 << 20


FORKS_AWAY = """
import os, sys, time
print("a" * 60 + "b", flush=True)
if os.fork():
    sys.exit(0)
os.setsid()
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("step", [None, pytest.param(r"(a+)+(\d)$", marks=pytest.mark.long)])
def test_a_trainer_that_forks_away_is_ended_and_an_endless_expression_too(
    tmp_path: Path, step: str | None
) -> None:
    run = make_external(
        tmp_path, FORKS_AWAY, train__external={"step": step}, supervise__no_progress_launches=1
    )
    ended = run.once()
    assert ended.returncode == 70, ended.stderr
    assert run.processes() == []
    (exited,) = run.events("trainer_exited")
    assert exited["exit_class"] == "crashed" and "must stay in the foreground" in exited["message"]
    unread = [event["message"] for event in run.events("steps_unread")]
    assert ["takes too long" in message and "docs/trainers.md" in message for message in unread] == (
        [True] if step else []
    )


PRINTS_WHEN_ASKED = """
import os, time
for n in range(6):
    while not os.path.exists(str(n)):
        time.sleep(0.01)
    print(f"\\r{10 * n}%|#| {n}/6 [00:01<00:05, 1.0it/s]", f"iter {n}: loss {n}.5", sep="\\n", flush=True)
"""


def test_a_trainer_that_has_just_begun_is_loading_and_reading_goes_on_over_a_reload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_external(tmp_path, PRINTS_WHEN_ASKED)
    daemon = run.start()
    try:
        shown = wait_until(
            lambda: (told := run.data.status(TRAIN_SUPERVISOR)).get("trainer_pid") and told, what="a trainer"
        )
        assert shown["phase"] == "load", "however long the machine is up"
        assert not shown["unread"], "a minute has not passed since its launch"
        for n in range(3):
            (tmp_path / str(n)).touch()
        wait_until(lambda: run.last_step() == 2, what="the rows before")

        def status() -> str:
            assert exit_code(["status", str(run.data.file)]) == 0
            return capsys.readouterr().out

        wait_until(lambda: "read from its output as nanoGPT" in status(), what="the first look after it")
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: run.events("reloaded"), what="the reload")
        for n in range(3, 6):
            (tmp_path / str(n)).touch()
        wait_until(lambda: run.record()["state"] == "finished", what="the end")
    finally:
        assert daemon.stop() == 0
    assert [(row["step"], row["loss"]) for row in rows(run)] == [(n, n + 0.5) for n in range(6)]
    assert len(run.events("trainer_launched")) == 1
