"""kill -9 of every process around a run, one by one and together, at seeded moments: the run is the same."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import ProcessId, signal_process
from stoker.store.layout import TRAIN_SUPERVISOR
from support.processes import wait_gone
from support.siege import Siege
from support.training import TrainPipeline, make_training, never_two
from support.waiting import wait_until

ORPHANS_S = 15.0
A_ROUND = 25  # kills of one run
TOGETHER = (
    *(("trainer",), ("guard",), ("supervisor",), ("sealer",), ("worker",)),
    *(("supervisor", "guard"), ("guard", "trainer"), ("trainer", "sealer"), ("supervisor", "sealer")),
    *(("supervisor", "guard", "trainer"), ("guard", "trainer", "sealer")),
    ("supervisor", "guard", "trainer", "sealer", "worker"),
)


class Besieged:
    """A run whose supervisor is started again whenever it is killed."""

    def __init__(self, run: TrainPipeline, chance: random.Random) -> None:
        self.run, self.chance, self.hits = run, chance, Counter[str]()
        self.siege = Siege(run.data, (TRAIN_SUPERVISOR,), never_exits=True, with_torch=False)

    def found(self, victim: str) -> list[ProcessId]:
        if victim == "supervisor":
            return [ProcessId.of(self.siege.running[TRAIN_SUPERVISOR].pid)]
        if victim == "worker":
            found = self.siege.victim("worker")
            with contextlib.suppress(ProcessLookupError):
                return [ProcessId.of(found[0])] if found is not None else []
            return []
        look: dict[str, Callable[[], list[ProcessId]]] = {
            "trainer": self.run.trainers,
            "guard": self.run.guards,
            "sealer": self.run.sealers,
        }
        return look[victim]()

    def is_over(self) -> bool:
        self.siege.tend()
        return bool(self.run.record().get("state") == "finished")

    def strike(self, victims: tuple[str, ...]) -> None:
        """Kills them at one of three kinds of moments, and waits until what hung on them has ended."""
        moment, reached = self.chance.choice(("now", "early", "later")), self.run.last_step()
        if moment != "now":
            wait_until(lambda: self.is_over() or self.run.trainers(), what="a trainer")
        if moment == "later":
            wait_until(lambda: self.is_over() or self.run.last_step() > reached + 5, what="steps")
        time.sleep(self.chance.uniform(0, 0.7))
        dying = [one for victim in victims for one in self.found(victim)[:1]]
        if not dying:
            return
        ending = dying
        if {"guard", "trainer"} & {*victims}:
            ending = [*dying, *self.run.processes()]
        if "supervisor" in victims:
            ending = self.siege.members()
        for process in dying:
            signal_process(process, signal.SIGKILL)
        self.hits["+".join(victims)] += 1
        if "supervisor" in victims:
            self.siege.running[TRAIN_SUPERVISOR].wait(ORPHANS_S)
        self.siege.tend()  # the next one meets what is left
        wait_gone(ending, ORPHANS_S)

    def survive(self, kills: int) -> None:
        """Kills until there were so many or the run is finished, then leaves it in peace."""
        self.siege.tend()
        try:
            while sum(self.hits.values()) < kills and not self.is_over():
                self.strike(self.chance.choice(TOGETHER))
            wait_until(self.is_over, 240.0, "the end of the run")
            assert set(self.siege.stop().values()) <= {0, -signal.SIGTERM}
        finally:
            self.siege.end()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [3, pytest.param(300, marks=pytest.mark.long)])
def test_a_run_whose_every_process_is_killed_again_and_again_equals_its_replay(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    chance, hits = random.Random(16), Counter[str]()
    while (left := kills - sum(hits.values())) > 0:
        home = tmp_path / f"after-{sum(hits.values())}"
        steps = 40 * min(left, A_ROUND)
        run = make_training(shard_sets, home, train__steps=steps, supervise__no_progress_launches=1000)
        besieged = Besieged(run, chance)
        with never_two(run.trainers, run.sealers):
            besieged.survive(min(left, A_ROUND))
        hits += besieged.hits
        print(sum(hits.values()), dict(hits), flush=True)
        assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, steps + 1))
        assert not run.processes() and not list(run.run.checkpoints.glob(".tmp-*"))
        assert not list(run.data.pipeline.layout.quarantine.iterdir())
        monkeypatch.setenv("STOKER_TEST_STEP_S", "0")
        with run.trainer():
            assert exit_code(["replay", str(run.data.file), "main", str(home / "replay")]) == 0
        monkeypatch.delenv("STOKER_TEST_STEP_S")
