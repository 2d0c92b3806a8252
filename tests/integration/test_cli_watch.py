"""`stoker watch`: a command of the user's own kept running in the foreground, without a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from stoker.cli.main import exit_code
from stoker.cli.pipeline.watch import body, taken_up
from stoker.kit.lock import read_holder
from stoker.store.layout import TRAIN_SUPERVISOR, StateLayout
from stoker.store.record import read_record, write_record
from support.waiting import wait_until

STOKER = (str(Path(sys.executable).parent / "stoker"),)
QUICK = {
    "STOKER_SUPERVISE__BACKOFF__FIRST": "0.1s",
    "STOKER_SUPERVISE__BACKOFF__MOST": "0.2s",
    "STOKER_SUPERVISE__NO_PROGRESS_LAUNCHES": "2",
}
# Makes six steps and a checkpoint of each second one; fails after the third, once.
TRAINER = """
import json, os, sys
step = json.load(open(sys.argv[2]))["step"] if sys.argv[1:] else 0
print("begins at", step, flush=True)
print("to stderr", file=sys.stderr, flush=True)
while step < 6:
    step += 1
    print(f"iter {step}: loss 2.0000, time 30.5ms", flush=True)
    if step % 2 == 0:
        with open("new", "w") as file: json.dump({"step": step}, file)
        os.replace("new", f"step-{step}.json")
    if step == 3 and len(sys.argv) == 1: sys.exit(3)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands are run in this empty directory, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    return tmp_path


def watch(
    home: Path, *words: str, command: Sequence[str], **more: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STOKER, "watch", *words, "--", *command],
        cwd=home,
        env={**os.environ, **QUICK, "XDG_STATE_HOME": str(home / "states")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_starts_again_from_the_newest_checkpoint_and_passes_both_streams_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    words = ("--checkpoints", "step-*.json", "--resume", "--resume {path}")
    ended = watch(tmp_path, *words, command=(sys.executable, "train.py"))
    assert ended.returncode == 0, ended.stderr
    begins = [line for line in ended.stdout.splitlines() if line.startswith("begins")]
    assert begins == ["begins at 0", "begins at 2"]
    assert "stoker:" not in ended.stdout
    assert ended.stderr.count("to stderr\n") == 2
    assert "the trainer ended at step 3: exit code 3" in ended.stderr
    assert "the run is finished" in ended.stderr
    (home,) = (tmp_path / "states" / "stoker").iterdir()
    run = StateLayout(home / "state").run("run-1")
    assert [path.name for path in sorted(run.checkpoints.iterdir())][-1] == "step-000000006"
    assert exit_code(["watch", "--list", "--state", str(home.parent)]) == 0
    name, where = capsys.readouterr().out.splitlines()
    assert name == f"{home.name}: run-1 finished, not watched now"
    assert where == f"    in {tmp_path}: {sys.executable} train.py"
    assert exit_code(["watch", "--list", "--state", str(tmp_path / "nowhere")]) == 0
    assert capsys.readouterr().out == "no watched commands\n"


def test_a_command_that_only_fails_ends_it_with_its_code_and_one_word_to_the_operator(tmp_path: Path) -> None:
    told = tmp_path / "told"
    words = ("--name", "fails", "--notify", f"sh -c 'echo \"$0\" >> {told}' {{message}}")
    # one line of metrics: the log of its rows has the one, which the next launch makes again
    command = ("sh", "-c", "echo ran >> ran; echo 'iter 1: loss 3.0, time 100ms'; exit 9")
    ended = watch(tmp_path, *words, command=command)
    assert ended.returncode == 9, ended.stderr
    assert "the same command again" in ended.stderr
    (line,) = told.read_text().splitlines()
    assert "2 launches in a row" in line
    assert (tmp_path / "ran").read_text().split() == ["ran"] * 2


def test_its_supervisor_may_be_killed_a_finished_command_runs_once_more_and_ctrl_c_asks_it_to_save(
    tmp_path: Path,
) -> None:
    script = "trap 'echo saved > saved; exit 0' TERM; echo ran >> ran; until [ -e end ]; do sleep 0.1; done"
    environ = {**os.environ, **QUICK, "XDG_STATE_HOME": str(tmp_path / "states")}
    ran, saved, end = (tmp_path / name for name in ("ran", "saved", "end"))
    command = ["nohup", *STOKER, "watch", "--name", "life", "sh", "-c", script]
    with subprocess.Popen(command, cwd=tmp_path, env=environ) as watching:
        wait_until(ran.exists, what="the begin of the command")
        (lock,) = (tmp_path / "states" / "stoker").glob("life/state/locks/train_supervisor.lock")
        watching.send_signal(signal.SIGHUP)  # nohup outlives its terminal
        second = watch(tmp_path, "--name", "life", command=("sh", "-c", script))
        assert second.returncode == 75 and "stoker watch" in second.stderr
        os.kill(read_holder(lock).pid, signal.SIGKILL)
        wait_until(lambda: ran.read_text().split() == ["ran"] * 2, what="another begin of the command")
        saved.unlink(missing_ok=True)  # a guard asks it for that when its supervisor dies
        end.touch()
        assert watching.wait(60) == 0
    end.unlink()
    with subprocess.Popen(command[1:], cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL) as watching:
        wait_until(lambda: ran.read_text().split() == ["ran"] * 3, what="one more begin of the command")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
    assert saved.exists()


@pytest.mark.parametrize("held", ["halted", "paused"])
def test_a_run_that_was_held_goes_on_when_it_is_started_again(tmp_path: Path, held: str) -> None:
    given = dict.fromkeys(("checkpoints", "resume", "step", "init_from")) | {"state": str(tmp_path)}
    layout = StateLayout(tmp_path / "state")
    layout.run("run-1").root.mkdir(parents=True)
    write_record(layout.run("run-1").record, {"v": 1, "state": held, held: {"by": "uid 0"}})
    taken_up(tmp_path / "w.yaml", body(("true",), "w", given))
    (request,) = layout.requests(TRAIN_SUPERVISOR).glob("*.json")
    assert read_record(request)["verb"] == "resume"


def test_save_writes_the_file_that_stoker_run_takes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("watch", "--checkpoints", "step-*.json", "--resume", "--resume {path}", "--save", "mine.yaml")
    assert exit_code([*words, "--", sys.executable, "train.py"]) == 0
    body = yaml.safe_load((here / "mine.yaml").read_text())
    assert body["train"]["command"] == [sys.executable, "train.py"]
    assert body["train"]["external"]["resume"] == ["--resume", "{path}"]
    assert exit_code(["config", "check", "mine.yaml"]) == 0, capsys.readouterr()
    assert exit_code([*words, "--", "true"]) == 64  # it exists


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "'--resume {path}"), "No closing quotation"),
        (("--step", "step (", "--name", "x"), "--step: is no regular expression"),
        (("--resume", "--resume {file}"), "{file} is unknown"),
        (("--name", "../x"), "name"),
        (("--init-from", "gone.pt"), "gone.pt: it is not there"),
        (("--save", "new.yaml", "--checkpoints", "../x*"), "--checkpoints: has '..'"),
    ],
)
def test_a_wrong_word_is_told_and_nothing_is_started(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert exit_code(["watch", *words, "--", "sh", "-c", "echo ran > ran"]) in (64, 78)
    assert said in capsys.readouterr().err
    assert not list(here.iterdir())


def test_a_program_that_is_not_there_ends_it_as_a_shell_does(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["watch", "--", "no-such-program", "--lr", "1"]) == 127
    assert "no-such-program: there is no such program" in capsys.readouterr().err
    assert not list(here.iterdir())
