"""The trainer as a process: stops, waits, ends and refusals, told by exit code, datagram and checkpoint."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.checkpoints.proof import prove_checkpoint
from stoker.kit.lock import Lock
from stoker.plan.log import read_plan
from support.sites import write_site
from support.trainer_run import SEQ_LEN, Inbox, TrainerRun
from support.waiting import LONG_S, wait_until

_SHOWS_FROZEN = """
import atexit, gc, pathlib, sys
if "stoker.training.trainer" in sys.orig_argv[1:4]:
    frozen = pathlib.Path(__file__).with_name("frozen")
    atexit.register(lambda: frozen.write_text(str(gc.get_freeze_count())))
"""


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    inbox = Inbox(tmp_path / "notify.sock")
    yield inbox
    inbox.close()


def test_a_trainer_waits_for_the_plan_seals_a_proven_checkpoint_at_a_stop_and_ends_with_the_data(
    tmp_path: Path, inbox: Inbox
) -> None:
    run = TrainerRun(tmp_path, steps=1000)
    run.plan(20)  # two batches of 8, and 4 windows that are no batch
    write_site(tmp_path, _SHOWS_FROZEN)
    trainer = run.start(socket_path=inbox.path, environ={"PYTHONPATH": str(tmp_path)})
    wait_until(lambda: _phase(inbox) == "wait-data", what="waiting for data")
    assert run.last_step() == 2
    run.plan(8)  # with the 4 left over: one batch across two entries
    wait_until(lambda: (inbox.read(), run.last_step() == 3)[1], what="the batch across entries")
    wait_until(lambda: _phase(inbox) == "wait-data", what="waiting again")
    run.plan(400)
    wait_until(lambda: (inbox.read(), run.last_step() >= 6)[1], what="some steps")
    trainer.send_signal(signal.SIGTERM)
    assert inbox.until_end(trainer) == 0, run.errors.read_text()

    (checkpoint,) = run.checkpoints()
    proof = prove_checkpoint(checkpoint)
    assert proof.verdict == "proven"
    body = proof.body.raw
    assert body["step"] == run.last_step() >= 6
    (told,) = (word["NUMERICS"] for word in inbox.read() if "NUMERICS" in word)
    own = json.loads((checkpoint / "trainer.json").read_bytes())["numerics"]
    assert json.loads(told) == own and body["micro_batch"] == own["micro_batch"]
    assert body["tokens"] == body["step"] * 8 * SEQ_LEN
    assert body["position"] == [2, body["step"] * 8 - 28]
    assert body["plan_head"] == read_plan(run.layout.plan).head
    assert (checkpoint / "plan.jsonl").read_bytes() == run.layout.plan.read_bytes()
    assert inbox.read()[-1]["FINISHED"] == "stopped"
    assert any(word.get("READY") == "1" for word in inbox.words)
    assert {word["LAUNCH"] for word in inbox.words} == {"launch-1"}
    assert int((tmp_path / "frozen").read_text()) > 10_000, "collections look through what was loaded"

    run.plan(end=True)
    resumed = run.start(socket_path=inbox.path, resume=checkpoint)
    assert inbox.until_end(resumed) == 0, run.errors.read_text()
    last = inbox.read()[-1]
    assert (last["FINISHED"], last["REMAINDER"]) == ("data_exhausted", "4")
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, 54))
    assert [row["step"] for row in run.rows() if "val_loss" in row] == [*range(0, 53, 5), 53]


def test_a_stop_while_loading_ends_at_once_and_leaves_nothing(tmp_path: Path, inbox: Inbox) -> None:
    run = TrainerRun(tmp_path)
    run.plan(200)
    os.mkfifo(tmp_path / "never-written")  # it waits here at the latest, still loading
    heldout = {"file": str(tmp_path / "never-written"), "sha256": "0" * 64, "windows": 6, "seq_len": 16}
    trainer = run.start(socket_path=inbox.path, heldout=heldout)
    wait_until(inbox.read, what="the first word")
    trainer.send_signal(signal.SIGTERM)
    assert inbox.until_end(trainer) == 0, run.errors.read_text()
    assert inbox.read()[-1]["FINISHED"] == "stopped"
    assert run.checkpoints() == [] and run.rows() == []


def test_a_second_trainer_of_a_run_exits_75_and_names_the_holder(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(200)
    with Lock.acquire(run.layout.rank0_lock, purpose="trainer of run main"):
        assert run.start().wait(LONG_S) == 75
    assert "trainer of run main" in run.errors.read_text()


def test_a_loss_that_is_not_finite_exits_76_with_its_step_and_position(tmp_path: Path, inbox: Inbox) -> None:
    run = TrainerRun(tmp_path)
    run.plan(200)
    wild = {"name": "adamw", "lr": 1e30, "betas": [0.9, 0.95], "weight_decay": 0.0, "clip": None}
    trainer = run.start(socket_path=inbox.path, optimizer=wild)
    assert inbox.until_end(trainer) == 76
    assert [path.name for path in run.checkpoints()] == ["step-000000001"]  # the one before it
    assert "its loss is" in run.errors.read_text() and "Traceback" not in run.errors.read_text()
    last = inbox.read()[-1]
    assert (last["STEP"], last["POSITION"]) == ("2", "0,8")
    assert "its loss is" in last["ERROR"] and "train.optimizer.lr" in last["ERROR"]


def _phase(inbox: Inbox) -> str:
    return inbox.read()[-1]["PHASE"] if inbox.read() else ""
