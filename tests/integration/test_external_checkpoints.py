"""Checkpoints of a trainer of the user's own under a real supervisor: sealed, restored, rolled back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoints.format import known_step
from stoker.checkpoints.proof import prove_checkpoint
from stoker.cli.main import exit_code
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import file_request
from stoker.supervise.external import stoker_client
from support.external_trainer import make_external
from support.outside import name_before
from support.training import TrainPipeline
from support.waiting import wait_until

# A look is due sooner.
SITE = """
import sys
if "from stokerd.train_supervisor" in " ".join(sys.orig_argv[1:4]):
    from stokerd.supervision.jobs import external as external_checkpoints
    external_checkpoints.LOOK_S = 0.1
"""
# Trains to step 40 from the path it is given, up to the step in the file `until`; saves every 10 steps.
SAVES = """
import os, sys, time
resume = os.environ["STOKER_RESUME_FROM"]
with open("launches", "a") as told:
    told.write(os.path.basename(resume) + "\\n")
launch = len(open("launches").readlines())
if os.path.exists("bad-" + os.path.basename(resume)):
    sys.exit("cannot load it")
done = int(open(resume).read()) if resume else 0
os.makedirs("out", exist_ok=True)
for step in range(done + 1, 41):
    while step > int(open("until").read()):
        time.sleep(0.02)
    print(f"iter {step}: loss {9 / step}, time 1.00ms", flush=True)
    if step % 10 == 0:
        open(f"out/step-{step}.bin", "w").write(str(step))
    if os.path.exists(f"die-{launch}-{step}"):
        os.kill(os.getpid(), 9)
"""
# Saves one file, again and again, and on a stop; tells of it by the client.
TELLS = """
import os, time
from stoker_client import Stoker
stoker = Stoker()
step = int(open(stoker.resume).read()) if stoker.resume else 0
with open("launches", "a") as told:
    told.write(f"{step} {stoker.resume_step}\\n")
while step < 40:
    while step + 1 > int(open("until").read()) and not stoker.stop:
        stoker.phase("train", step=step)  # what could not be sent is sent with the next word
        time.sleep(0.02)
    step += 1
    stoker.phase("train", step=step, loss=9 / step)
    if step == 12:
        stoker.tell(checkpoint="nowhere.txt")
    if step % 10 == 0 or stoker.stop:
        open("ckpt.tmp", "w").write(str(step))
        os.replace("ckpt.tmp", "ckpt.txt")
        stoker.tell(checkpoint="ckpt.txt")
    if stoker.stop:
        break
"""
# Saves two files with a pause between them, into one directory that it tells, or into one for each step.
PAUSES = """
import glob, os, sys, time
from stoker_client import Stoker
stoker, PARTS = Stoker() if sys.argv[1] == "told" else None, ("model", "optimizer")
resume = os.environ["STOKER_RESUME_FROM"]
steps = [int(open(f"{resume}/{part}").read()) for part in PARTS] if resume else [0, 0]
with open("launches", "a") as told:
    told.write(f"{steps[0]} {steps[1]}\\n")
launch = len(open("launches").readlines())
halves = os.environ["STOKER_RUN_DIR"] + "/checkpoints/step-*/files/step-10/model"
for step in range(steps[0] + 1, 41):
    print(f"iter {step}: loss {9 / step}, time 1.00ms", flush=True)
    time.sleep(0.03)
    if step % 10 == 0:
        path = "out/last" if stoker else f"out/step-{step}"
        os.makedirs(path, exist_ok=True)
        for part in PARTS:
            if part == "optimizer":
                dies = os.path.exists(f"die-{launch}-{step}")
                time.sleep(0.4 if dies else 1.2)
                while not stoker and step == 10 and not glob.glob(halves):
                    time.sleep(0.02)  # the longest pause, of which the first half is sealed
                if dies:
                    os.kill(os.getpid(), 9)
            with open(f"{path}/{part}", "w") as file:
                file.write(str(step))
        if stoker:
            stoker.tell(checkpoint=path)
            sealed = os.environ["STOKER_RUN_DIR"] + "/checkpoints/step-*/files/last/optimizer"
            while str(step) not in [open(part).read() for part in glob.glob(sealed)]:
                time.sleep(0.02)  # what is told is written to again only then
"""


@pytest.fixture(autouse=True)
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)


def go_on(home: Path, until: int) -> None:
    """Let the trainer train up to a step; it reads the file at any time."""
    (home / "next").write_text(str(until))
    (home / "next").rename(home / "until")


def make(home: Path, script: str = SAVES, *words: str, until: int = 40, **keys: Any) -> TrainPipeline:
    settings = {"train__external": {"checkpoints": "out/*", "quiet": "0.3s"}, **keys}
    run = make_external(home, script, *words, **settings)
    go_on(home, until)
    return run


def launches(home: Path) -> list[str]:
    return (home / "launches").read_text().splitlines()


def asides(folder: Path) -> list[str]:
    return sorted(name_before(path.name) for path in folder.glob(".stoker-before-*"))


def test_a_run_begins_from_init_from_and_what_cannot_be_loaded_is_set_aside_and_the_one_before_restored(
    tmp_path: Path,
) -> None:
    before = tmp_path / "out" / "step-5.bin"
    before.parent.mkdir()
    before.write_text("5")
    run = make(tmp_path, train__init_from=str(before))
    (tmp_path / "die-1-20").touch()  # its newest step is that of the checkpoint
    (tmp_path / "bad-step-20.bin").touch()
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    # Twice it could not be loaded; its own file is out of the way of a trainer that takes the newest.
    assert launches(tmp_path) == ["step-5.bin", "step-20.bin", "step-20.bin", "step-10.bin"]
    assert asides(tmp_path / "out") == ["step-20.bin"]
    assert len(run.events("checkpoint_suspect")) == 1
    # All are sealed although the trainer ended at once: also what an ended trainer has left.
    assert run.checkpoints() == [f"step-{step:09d}" for step in (20, 30, 40)]  # keep_last
    newest = run.run.checkpoints / "step-000000040"
    assert prove_checkpoint(newest).verdict == "proven"
    assert (newest / "files" / "step-40.bin").read_text() == "40"
    assert run.record()["finished"] == "trainer"


def test_a_rollback_survives_kills_and_what_it_gives_up_is_never_sealed_again(tmp_path: Path) -> None:
    (tmp_path / "warm").mkdir()
    run = make(tmp_path, until=25, warm=str(tmp_path / "warm"))
    supervisor = run.start()
    try:
        wait_until(lambda: "step-000000020" in run.checkpoints(), what="the seal beside training")
        go_on(tmp_path, 30)
        wait_until((tmp_path / "out" / "step-30.bin").exists, what="a save")
    finally:
        supervisor.kill()
    (tmp_path / "out" / "step-35.bin").write_text("")  # half of one, say
    layout = run.data.pipeline.layout
    file_request(layout, TRAIN_SUPERVISOR, "rollback", {"to": 10, "reason": "test"}, {"timeline": 0})
    go_on(tmp_path, 40)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert launches(tmp_path) == ["", "step-10.bin"], run.events()
    assert asides(tmp_path / "out") == ["step-20.bin", "step-30.bin", "step-35.bin"]
    assert {path.name for path in (run.run.abandoned / "t0").iterdir()} >= {"step-000000020"}
    sealed = [run.run.checkpoints / name / "checkpoint.json" for name in run.checkpoints()]
    bodies = [json.loads(path.read_bytes()) for path in sealed]
    assert [(body["step"], body["timeline"]) for body in bodies] == [(20, 1), (30, 1), (40, 1)]
    mirrored = list((tmp_path / "warm").glob("checkpoints/main/t1/step-000000040-*/files/step-40.bin"))
    assert [path.read_text() for path in mirrored] == ["40"]


def test_a_told_checkpoint_is_sealed_at_once_and_one_told_at_a_stop_by_the_next_supervisor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path, TELLS, until=15, train__external={"step": None})
    shutil.copy(str(stoker_client.__file__), tmp_path)
    supervisor = run.start()
    wait_until(lambda: run.checkpoints() == ["step-000000010"], what="the seal of what was told")
    refused = ("stoker_train_saves_refused",)
    wait_until(lambda: run.metrics()[refused] == 1, what="the gauge of saves that are not taken")
    assert supervisor.stop() == 0
    told = int((tmp_path / "ckpt.txt").read_text())
    assert told == 16
    (tmp_path / "ckpt.txt").rename(tmp_path / "lost")
    shutil.copy2(tmp_path / "lost", tmp_path / "ckpt.txt")
    run.run.record.write_bytes(b"")  # restored from step 10, and what was told after it is not passed over
    go_on(tmp_path, 40)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert launches(tmp_path) == ["0 0", "16 16"]
    assert {10, 16, 40} <= {int(name[5:]) for name in run.checkpoints()}  # told too fast, the last counts
    assert exit_code(["checkpoint", "list", str(run.data.file)]) == 0
    assert capsys.readouterr().out.count("proven") == len(run.checkpoints())
    assert exit_code(["audit", str(run.data.file)]) == 0
    assert "own: balanced\n" in (told_by_audit := capsys.readouterr().out) and "  plan " not in told_by_audit
    assert exit_code(["checkpoint", "generate", str(run.data.file)]) == 64
    assert "of an external trainer: Stoker knows no model in it" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["found", pytest.param("told", marks=pytest.mark.long)])
def test_no_launch_begins_from_half_of_a_save_that_pauses_and_none_loses_what_was_whole(
    tmp_path: Path, how: str
) -> None:
    run = make(tmp_path, PAUSES, how, train__external={"checkpoints": "out/*", "quiet": "0.5s"})
    shutil.copy(str(stoker_client.__file__), tmp_path)
    (tmp_path / "die-1-30").touch()
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert launches(tmp_path) == ["0 0", "20 20"]
    for name in run.checkpoints():
        sealed = run.run.checkpoints / name
        model, optimizer = (int(part.read_text()) for part in sealed.glob("files/*/[mo]*"))
        assert model == optimizer, name
        assert known_step(json.loads((sealed / "checkpoint.json").read_bytes())) in (model, None), name
    assert model == 40
    half = "last" if how == "told" else "step-30"
    assert asides(tmp_path / "out") == [half]  # and it is not lost
    refused = [event["reason"] for event in run.events("checkpoint_refused")]
    assert any("ended while it was written" in reason for reason in refused), refused
