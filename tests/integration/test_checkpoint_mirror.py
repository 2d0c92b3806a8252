"""The mirror with real processes: copies while training, falls back, survives the death of the state disk."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoints.mirror.layout import list_mirror
from stoker.checkpoints.proof import prove_checkpoint
from stoker.kit.process import ProcessId, processes_with_environment, signal_process
from stoker.observe.status import read_status
from stoker.plan.timelines import ancestry, committed, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.store.requests import file_request, read_outcome
from stoker.supervise.audit.audit import audit_run
from support.halting import halts_at, wait_halted
from support.once import made_once
from support.processes import wait_gone
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

NEWEST = "step-000000060"


class Mirrored:
    """A training pipeline with a warm disk."""

    def __init__(self, template: Path, home: Path, **changes: Any) -> None:
        self.warm = home / "warm"
        self.train = make_training(template, home, warm=str(self.warm), **changes)
        self.run = self.train.run
        self.mirror = self.warm / "checkpoints" / "main"

    def copies(self) -> list[str]:
        """The steps that are mirrored, and whole."""
        found = [one.name for one in list_mirror(self.mirror)]
        for name in found:
            assert prove_checkpoint(self.mirror / name).verdict == "proven", name
        return sorted(Path(name).name[: len(NEWEST)] for name in found)

    def names(self) -> list[str]:
        """The copies by timeline and step."""
        return sorted(one.name[: -len("-00000000")] for one in list_mirror(self.mirror))

    def recorded(self) -> set[int]:
        """The steps that mirror.json has."""
        return {copy["step"] for copy in read_record(self.run.mirror)["copies"]}

    def copy_of(self, step: str, warm: Path | None = None) -> Path:
        """The one copy of a step."""
        (found,) = (warm or self.warm).glob(f"checkpoints/main/t*/{step}-*")
        return found

    def status(self) -> dict[str, Any]:
        """What the supervisor shows of the mirror."""
        body = read_status(self.train.data.pipeline.layout)[TRAIN_SUPERVISOR]["body"]
        shown: dict[str, Any] = body.get("mirror") or {}
        return shown

    def doing(self) -> str:
        """What the supervisor says it does."""
        return str(read_status(self.train.data.pipeline.layout)[TRAIN_SUPERVISOR]["body"].get("doing"))

    def workers(self) -> list[ProcessId]:
        """The mirror's workers that live."""
        return processes_with_environment("STOKER_POOL", f"{self.train.data.pipeline.layout.state}:mirror")

    def awaited(self, event: str, count: int = 1) -> dict[str, Any]:
        """The event, once it was recorded so often."""
        return wait_until(lambda: self.train.events(event)[count - 1 :], 60.0, event)[0]


def on_t0(steps: list[str]) -> list[str]:
    return [f"t0/{step}" for step in steps]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


@pytest.fixture(scope="module")
def template(finished: TrainPipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with its checkpoints mirrored."""

    def mirror(home: Path) -> None:
        one = Mirrored(finished.data.home, home)
        one.warm.mkdir()
        ended = one.train.once()
        assert ended.returncode == 0, ended.stderr

    return made_once(tmp_path_factory, "mirrored", mirror)


@pytest.fixture
def mirrored(template: Path, tmp_path: Path) -> Callable[..., Mirrored]:
    """Makes a pipeline of one's own with the finished run and its mirror."""

    def make(**changes: Any) -> Mirrored:
        shutil.copytree(template / "warm", tmp_path / "home" / "warm")
        return Mirrored(template, tmp_path / "home", **changes)

    return make


def test_a_finished_run_is_mirrored_with_its_heldout_windows(template: Path, finished: TrainPipeline) -> None:
    one = Mirrored(template, template)
    assert one.copies() == finished.checkpoints()
    sha256 = one.train.record()["heldout"]["sha256"]
    assert (one.mirror / f"heldout-{sha256[:8]}.bin").read_bytes() == finished.run.heldout.read_bytes()
    shown = one.status()
    assert (shown["step"], shown["waiting"], shown["trouble"]) == (60, 0, None)
    assert {event["step"] for event in one.train.events("checkpoint_mirrored")} == {40, 50, 60}
    assert one.train.events("checkpoint_mirrored")[0]["step"] == 60  # the newest went first
    assert [path.name for path in one.mirror.glob("*/.tmp-*")] == []


def test_an_audit_has_the_mirror_on_record_and_looks_at_it_when_told_to(
    mirrored: Callable[..., Mirrored],
) -> None:
    one = mirrored()
    pipeline = one.train.data.pipeline
    quick, deep = audit_run(pipeline), audit_run(pipeline, deep=True)
    assert (quick.checkpoints["mirrored"], quick.on_record, quick.findings) == (3, ("checkpoint mirror",), ())
    assert (deep.checkpoints["mirrored"], deep.on_record, deep.findings) == (3, (), ())
    flip(one.copy_of(NEWEST) / "model-00001.safetensors")
    shutil.rmtree(one.copy_of("step-000000040"))
    flip(next(one.mirror.glob("heldout-*.bin")))
    assert audit_run(pipeline).findings == ()
    wrong, heldout, gone = audit_run(pipeline, deep=True).findings
    assert "invalid: sha256 of model-00001.safetensors differs" in wrong
    assert "heldout-" in heldout
    assert gone.endswith("on record, but not there")
    shutil.rmtree(one.warm)
    assert "is warm mounted?" in audit_run(pipeline, deep=True).findings[0]


def test_a_launch_waits_for_a_warm_that_may_hold_a_newer_checkpoint_and_goes_on_from_a_whole_one_bit_for_bit(
    mirrored: Callable[..., Mirrored], finished: TrainPipeline
) -> None:
    one = mirrored()
    away = one.warm.with_name("away")
    shutil.rmtree(one.run.checkpoints / NEWEST)
    flip(one.run.checkpoints / "step-000000050" / "model-00001.safetensors")
    one.warm.rename(away)
    daemon = one.train.start()
    try:
        assert "may hold a newer checkpoint: the run waits for it" in one.awaited("mirror_awaited")["message"]
        wait_until(lambda: "waiting for warm" in one.doing(), 60.0, "the status")
        assert one.train.events("trainer_launched")[1:] == []
        assert one.train.events("checkpoint_quarantined")[0]["path"] == "checkpoints/step-000000050"
        flip(one.copy_of(NEWEST, away) / "optimizer-00001.safetensors")
        away.rename(one.warm)
        assert one.awaited("checkpoint_fetched")["step"] == 50
        assert one.train.events("mirror_copy_bad")[0]["copy"].startswith(f"t0/{NEWEST}")
        wait_until(lambda: one.status().get("trouble", "none yet") is None, 60.0, "the end of the trouble")
        assert one.awaited("trainer_launched", 2)["resume_step"] == 50
        wait_until(lambda: one.train.record()["state"] == "finished", 60.0, "the end of the run")
        wait_until(lambda: one.recorded() == {40, 50, 60} and one.copies(), 60.0, "the last copy")
    finally:
        assert daemon.stop() == 0
    assert one.train.rows() == finished.rows()
    assert one.train.tensors() == finished.tensors()
    assert one.copies() == finished.checkpoints()


def test_a_step_that_is_only_mirrored_is_rolled_back_to_and_the_death_of_the_state_disk_costs_nothing_then(
    mirrored: Callable[..., Mirrored], finished: TrainPipeline, shard_sets: Path
) -> None:
    one = mirrored()
    layout = one.train.data.pipeline.layout
    shutil.rmtree(one.run.checkpoints / "step-000000040")
    daemon = one.train.start()
    try:
        words = {"to": 40, "reason": "test"}
        asked = file_request(layout, TRAIN_SUPERVISOR, "rollback", words, {"timeline": 0})
        told = wait_until(lambda: read_outcome(layout, asked), 60.0, "the rollback")
        assert (told.get("timeline"), told.get("from")) == (1, 40), told
        assert one.train.events("checkpoint_fetched")[0]["step"] == 40
        wanted = ["t0/step-000000040", "t1/step-000000050", "t1/step-000000060"]
        wait_until(lambda: one.names() == wanted, 90.0, "the new timeline in the mirror, the old one gone")
        assert one.copies() == one.train.checkpoints()
        wait_until(lambda: one.train.record()["state"] == "finished", 60.0, "the end of the run")
    finally:
        assert daemon.stop() == 0
    shutil.rmtree(one.copy_of(NEWEST))
    same = (one.run.heldout, one.run.plan, one.run.timelines)
    before = [file.read_bytes() for file in same]
    shutil.rmtree(layout.state)
    daemon = one.train.start()
    try:
        assert one.awaited("checkpoint_fetched")["copy"].startswith("t1/step-000000050")
        wait_until(lambda: "pin" in one.doing(), 60.0, "a word that the dataset's pin is awaited")
        others = shutil.ignore_patterns("locks", "runs", "events", "samples", "ledger", "requests")
        shutil.copytree(shard_sets / "state", layout.state, ignore=others, dirs_exist_ok=True)
        wait_until(lambda: one.train.record().get("state") == "finished", 60.0, "the end of the run")
    finally:
        assert daemon.stop() == 0
    assert [event["resume_step"] for event in one.train.events("trainer_launched")] == [50]
    assert [file.read_bytes() for file in same] == before
    assert one.train.record()["run_id"] == finished.record()["run_id"]
    assert one.train.tensors() == finished.tensors()
    forks = ancestry(read_timelines(one.run.timelines))
    rows = committed(one.train.rows(), forks, lambda row: (row["timeline"], row["step"], "loss" in row))
    assert [row | {"timeline": 0} for row in rows] == finished.rows()
    assert audit_run(one.train.data.pipeline, deep=True).findings == ()


def test_a_run_is_mirrored_by_one_policy_whatever_warm_does_meanwhile(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in halts_at(tmp_path / "halts", [14]).items():
        monkeypatch.setenv(name, value)  # the run is not over before warm was away and is back
    one = Mirrored(
        shard_sets,
        tmp_path / "new",
        train__steps=24,
        train__checkpoint={"every": None, "every_steps": 4, "keep_last": 2, "milestones": [8]},
    )
    daemon = one.train.start()
    try:
        one.awaited("mirror_awaited")  # the mirror is seen once before a run begins from nothing
        assert one.train.record() == {}
        one.warm.mkdir()
        one.awaited("trainer_launched")
        shutil.rmtree(one.warm)  # away while training: an event, and nothing stops
        one.awaited("mirror_failed")
        trainer = one.train.wait_for_step(14)
        wait_halted(trainer.pid)
        one.warm.mkdir()
        signal_process(trainer, signal.SIGCONT)
        one.awaited("mirror_recovered")
        wait_until(lambda: one.train.record().get("state") == "finished", 60.0, "the end of the run")
        wait_until(lambda: one.names() == on_t0(one.train.checkpoints()), 60.0, "the last copies")
        kept = one.train.checkpoints()
        steps = {int(name.removeprefix("step-")) for name in kept}
        wait_until(lambda: one.recorded() == steps, 30.0, "the copies on record")
    finally:
        assert daemon.stop() == 0
    assert one.copies() == kept
    assert len(one.train.events("trainer_launched")) == 1
    assert {"step-000000008", "step-000000020", "step-000000024"} <= set(kept)
    assert "step-000000012" not in kept


def test_a_hung_and_killed_copy_leaves_nothing_wrong_and_is_gone_on_with(
    mirrored: Callable[..., Mirrored],
) -> None:
    one = mirrored()
    copy = one.copy_of(NEWEST)
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    temporary = copy.with_name(f".tmp-{copy.name}")
    copy.rename(temporary)
    (temporary / "optimizer-00001.safetensors").unlink()
    blocked = next(one.mirror.glob("heldout-*.bin"))
    blocked.unlink()
    os.mkfifo(blocked)  # opening it to read hangs, as on a mount that does not answer
    first = one.train.start()
    second = None
    try:
        wait_until(lambda: one.status().get("copying") == 60 and one.workers(), 60.0, "a copy that hangs")
        signal_process(one.workers()[0], signal.SIGKILL)
        assert "SIGKILL" in one.awaited("mirror_failed")["reason"]
        wait_until(one.workers, 60.0, "another try")
        workers = one.workers()
        first.kill()
        wait_gone(workers, 10.0)
        assert "step-000000060" not in one.copies()
        blocked.unlink()
        second = one.train.start()
        wait_until(lambda: one.train.events("checkpoint_mirrored")[3:], 60.0, "the copy")
    finally:
        for daemon in (first, second):
            if daemon is not None and daemon.process.poll() is None:
                assert daemon.stop() == 0
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before
    assert list(copy.parent.glob(".tmp-*")) == []
