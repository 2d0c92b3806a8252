"""kill -9 of trainer, guard and sealer with a save in flight: whole checkpoints, one sealer, the same run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoints.proof import prove_checkpoint
from stoker.cli.main import exit_code
from stoker.kit.process import ProcessId, processes_with_environment, signal_process
from support.halting import halts_at, is_halted
from support.processes import wait_gone
from support.sites import SMALL_TRAINER
from support.trainer_run import Inbox, TrainerRun
from support.training import SEALER, SLOW_ENOUGH, TrainPipeline, make_training, never_two, runs
from support.waiting import wait_until

SMALL = {"STOKER_TEST_TRAINER": "small", "PYTHONPATH": str(SMALL_TRAINER)}
EVERY = 10  # steps between two checkpoints of `make_training`
MUON = {"train__optimizer": {"name": "muon", "lr": 0.003}}
RECOMPUTE = {"train__recompute": "blocks"}
EMA = {"train__ema": {"decay": 0.9, "every": 2, "from_step": 15}}
DOCUMENTS = {"train__model": {**SLOW_ENOUGH, "document_mask": True}}


def halted_sealer(run: TrainPipeline) -> ProcessId | None:
    return next((each for each in run.sealers() if is_halted(each.pid)), None)


def test_with_a_save_in_flight_a_kill_costs_at_most_that_save(
    finished: TrainPipeline, shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halts = ["begun-10", "half-20", "begun-30", "half-40", "begun-50"]
    for name, value in halts_at(tmp_path / "halts", halts).items():
        monkeypatch.setenv(name, value)
    run = make_training(shard_sets, tmp_path / "killed", supervise__stop_time="60s")  # sealers stand still
    daemon, halted = run.start(), list[ProcessId]()

    def kill(*names: str) -> ProcessId:
        """Kill these in this order; returns the sealer, which stands still with a save in flight."""
        sealer = wait_until(  # not the one before, which its guard has yet to let go on
            lambda: (found := halted_sealer(run)) and found not in halted and found, what="a save in flight"
        )
        halted.append(sealer)
        named = {"trainer": run.trainers(), "sealer": [sealer], "guard": run.guards()}
        dying = [named[name][0] for name in names]
        for victim in dying:
            signal_process(victim, signal.SIGKILL)
        wait_gone(dying)
        return sealer

    def go_on(sealer: ProcessId, step: int, met: int) -> None:
        """Let it seal that step once a supervisor has met it, which launches nothing meanwhile."""
        launches = len(run.events("trainer_launched"))
        wait_until(lambda: run.events("leftovers_found")[met:], what="the supervisor to meet the sealer")
        assert sealer.alive() and len(run.events("trainer_launched")) == launches
        assert f"step-{step:09d}" not in run.checkpoints()
        signal_process(sealer, signal.SIGCONT)

    try:
        with never_two(run.trainers, run.sealers):
            kill("sealer")
            kill("trainer")  # whose guard lets the sealer go on
            # A guard first: one that lives on lets the sealer go on, too.
            sealer = kill("guard", "trainer")
            daemon.kill()
            met = len(run.events("leftovers_found"))
            daemon = run.start()
            go_on(sealer, 30, met)
            kill("guard", "trainer", "sealer")
            wait_until(lambda: run.events("trainer_launched")[3:], what="the launch after all of them")
            met = len(run.events("leftovers_found"))
            go_on(kill("guard"), 50, met)
            wait_until(lambda: run.record().get("state") == "finished", what="the end of the run")
    finally:
        assert daemon.stop() == 0
    assert "SIGKILL" in run.events("checkpoint_failed")[0]["message"]
    launched = [event["resume_step"] for event in run.events("trainer_launched")]
    # No fifth where the last one's sealer had all steps already: it ends what it was handed whole.
    assert launched[:4] == [0, 20, 30, 30] and all(step >= 50 for step in launched[4:])
    assert run.rows() == finished.rows()
    assert run.tensors() == finished.tensors()


def survive(run: TrainPipeline, kills: int, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Kill trainer, guard and sealer by turns, half of the times with a save in flight; then replay it."""
    chance = random.Random(15)
    halts = {
        step: chance.choice(("begun", "half")) for step in range(2 * EVERY, 2 * EVERY * kills + 1, 4 * EVERY)
    }
    for name, value in halts_at(home / "halts", [f"{at}-{step}" for step, at in halts.items()]).items():
        monkeypatch.setenv(name, value)
    daemon = run.start()
    try:
        with never_two(run.trainers, run.sealers):
            for kill in range(kills):
                if kill % 2 == 0:
                    sealer = wait_until(lambda: halted_sealer(run), 240, "a save in flight")
                else:
                    run.wait_for_step(kill * 2 * EVERY + chance.randrange(1, 2 * EVERY))
                    sealer = wait_until(run.sealers, what="a sealer")[0]
                dying = [*run.trainers()[:1], *run.guards()[:1], sealer]
                for victim in chance.choice(([dying[0]], dying[1:2], dying[-1:], dying[:2], dying)):
                    signal_process(victim, signal.SIGKILL)
                signal_process(sealer, signal.SIGCONT)
            wait_until(lambda: run.record().get("state") == "finished", 240, "the end of the run")
    finally:
        assert daemon.stop() == 0
    assert all(prove_checkpoint(run.run.checkpoints / name).verdict == "proven" for name in run.checkpoints())
    with run.trainer():
        assert exit_code(["replay", str(run.data.file), "main", str(home / "replay")]) == 0


def besieged(shard_sets: Path, home: Path, kills: int, **changes: Any) -> TrainPipeline:
    steps = (kills + 1) * 2 * EVERY
    return make_training(shard_sets, home, train__steps=steps, supervise__no_progress_launches=50, **changes)


@pytest.mark.long
def test_a_run_killed_sixty_times_equals_its_replay(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survive(besieged(shard_sets, tmp_path / "killed", 60), 60, monkeypatch, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        (2, {**MUON, **RECOMPUTE, **DOCUMENTS}),
        (30, EMA),
        *((12, each) for each in ({}, MUON, {"train__compile": "blocks"}, RECOMPUTE, DOCUMENTS)),
    ],
)
def test_with_torch_a_killed_run_equals_its_replay(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, options: dict[str, Any]
) -> None:
    run = besieged(shard_sets, tmp_path / "killed", kills, with_torch=True, **options)
    survive(run, kills, monkeypatch, tmp_path)


def test_a_stop_with_a_save_in_flight_finishes_that_and_seals_the_last_step(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in halts_at(tmp_path / "halts", ["begun-10"]).items():
        monkeypatch.setenv(name, value)
    checkpoint = {"every": None, "every_steps": 10, "busy": "skip"}
    run = make_training(shard_sets, tmp_path / "stopped", train__steps=5000, train__checkpoint=checkpoint)
    daemon = run.start()
    sealer = wait_until(lambda: halted_sealer(run), what="a save in flight")
    run.wait_for_step(25)  # that of step 20 is skipped
    assert run.checkpoints() == []
    assert daemon.stop() == 0  # the guard lets a process that stands still go on
    assert not sealer.alive()
    assert run.checkpoints() == ["step-000000010", f"step-{run.last_step():09d}"]
    assert run.events("trainer_exited")[-1]["exit_class"] == "stopped_as_asked"


@pytest.mark.root
def test_a_disk_that_stays_full_is_told_at_the_first_save_and_ends_the_trainer_at_the_second(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    run = TrainerRun(tmp_path, steps=1000)
    run.plan(4000)
    inbox = Inbox(tmp_path / "notify.sock")
    small = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(run.layout.checkpoints)]
    subprocess.run(small, check=True)
    try:
        cadence = {"every_s": None, "every_steps": 20}
        trainer = run.start(checkpoint=cadence, socket_path=inbox.path, environ=SMALL)
        assert inbox.until_end(trainer) == 74
        assert run.checkpoints() == []
        failed = [word for word in inbox.read() if "SAVE_FAILED" in word]
        assert (
            len(failed) == 1
            and 20 <= int(failed[0]["STEP"]) <= 40
            and "free space" in failed[0]["SAVE_FAILED"]
        )
        assert run.last_step() >= 40 and "free space" in inbox.words[-1]["ERROR"]
    finally:
        inbox.close()
        subprocess.run(["umount", run.layout.checkpoints], check=True)


def waits_for_the_sealer(last: list[dict[str, str]]) -> bool:
    """Whether the trainer's last word is of the save at step 14, which waits for that of step 7."""
    return bool(last) and (last[0]["PHASE"], last[0].get("STEP")) == ("checkpoint", "14")


def test_a_sealer_that_stands_still_holds_up_the_next_save_alone_and_its_checkpoint_is_of_its_step(
    tmp_path: Path,
) -> None:
    cadence = {"every_s": None, "every_steps": 7}
    both = {name: TrainerRun(tmp_path / name, steps=20) for name in ("peaceful", "halted")}
    inbox = Inbox(tmp_path / "notify.sock")
    for name, run in both.items():
        run.plan(200)
        environ = dict(SMALL)
        if name == "halted":
            halts = halts_at(tmp_path / "halts", ["begun-7"])["PYTHONPATH"]
            environ["PYTHONPATH"] = os.pathsep.join((halts, SMALL["PYTHONPATH"]))
        trainer = run.start(checkpoint=cadence, environ=environ, socket_path=inbox.path)
        if name == "halted":
            wait_until(lambda: waits_for_the_sealer(inbox.read()[-1:]), what="the next save")
            found = processes_with_environment("STOKER_RUN_DIR", str(run.layout.root))
            (sealer,) = [each for each in found if runs(each, SEALER)]
            assert run.checkpoints() == []
            assert run.last_step() == 14 and trainer.poll() is None, "it waits"
            assert is_halted(sealer.pid)
            os.kill(sealer.pid, signal.SIGCONT)
        assert inbox.until_end(trainer) == 0, run.errors.read_text()
    inbox.close()
    ours, theirs = (both[name].checkpoints() for name in ("halted", "peaceful"))
    assert [path.name for path in ours] == ["step-000000007", "step-000000014", "step-000000020"]
    for one, other in zip(ours, theirs, strict=True):
        for file in other.iterdir():
            assert (one / file.name).read_bytes() == file.read_bytes(), file
