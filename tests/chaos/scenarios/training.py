"""A training run whose supervisor, guard or trainer dies anywhere ends with the same losses and bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from chaos.driver import Launch, Scenario
from chaos.job import Job
from stoker.observe.status import read_status
from stoker.store.layout import TRAIN_SUPERVISOR
from support.processes import daemon_command
from support.training import TrainPipeline, make_shard_sets, make_training, on_one_core


class TrainingScenario(Scenario):
    """Sixty steps with a checkpoint every ten, compared with a run that was left in peace."""

    name = "training"
    targets = ("trainer", "guard", "supervisor")
    calls: ClassVar = {"fsync": 90, "rename": 25}
    longest_s = 6.0
    limit_s = 120.0

    def __init__(self, shard_sets: Path | None = None, peace: TrainPipeline | None = None) -> None:
        self.shard_sets, self.peace = shard_sets, peace  # made at the start unless somebody has them

    def start(self, directory: Path) -> None:
        if self.shard_sets is None:
            self.shard_sets = directory.parent / "shard-sets"
            make_shard_sets(self.shard_sets)
        if self.peace is None:
            self.peace = make_training(self.shard_sets, directory.parent / "peace", with_torch=True)
            ended = self.peace.once()
            assert ended.returncode == 0, ended.stderr
        self.run = make_training(self.shard_sets, directory, with_torch=True)

    def step(self, launch: Launch) -> Job:
        with on_one_core():
            return TrainingJob(launch, self.run)

    def check(self) -> None:
        assert self.peace is not None
        assert self.run.record()["finished"] == "steps"
        assert self.run.rows() == self.peace.rows()
        assert self.run.tensors() == self.peace.tensors()
        assert not list(self.run.run.checkpoints.glob(".tmp-*"))
        assert self.run.processes() == []
        shutil.rmtree(self.run.data.home)


class TrainingJob(Job):
    """A supervisor with --once; trainer and guard are found by the run directory in their environment."""

    def __init__(self, launch: Launch, run: TrainPipeline) -> None:
        command = launch.command(daemon_command(TRAIN_SUPERVISOR, run.data.file, "--once"))
        super().__init__(command, output=run.data.home / "stderr")
        self.run = run
        self._seen = ""

    def pid(self, target: str) -> int | None:
        if self.ended():
            return None
        self._seen = self._doing()  # a killed trainer is followed by another: what counts is now
        if target == "supervisor":
            return self.process.pid
        found = self.run.trainers() if target == "trainer" else self.run.guards()
        return found[0].pid if found else None

    def phase(self, target: str) -> str:
        return f"{target}: {self._seen or self._doing()}"

    def _doing(self) -> str:
        body = read_status(self.run.data.pipeline.layout)[TRAIN_SUPERVISOR]["body"]
        return str(body.get("phase") or body.get("doing", "start")).partition(" ")[0]
