"""What ends the supervisor's wait: words of steps are taken in meanwhile, anything else ends it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.kit.loop import Waiter
from stoker.kit.process import ProcessId
from stoker.supervise.health.guarded import GuardedTrainer
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stokerd.supervision.loop import Supervisor
from stokerd.supervision.run import Run
from stokerd.supervision.trainer.control import TrainerControl

LONG_S = 60.0


class Waiting:
    """A supervisor that waits for a trainer, with the trainer's end of the socket and the guard's pipe."""

    def __init__(self, path: Path) -> None:
        self.waiter, words = Waiter(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        words.bind(str(path))
        self.trainer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.trainer.connect(str(path))
        reports, self.guard = os.pipe()
        guard = cast(Any, SimpleNamespace(pid=os.getpid()))
        guarded = GuardedTrainer(
            guard, lock=None, reports=reports, words=words, notify_socket=path, waiter=self.waiter
        )
        launch, view = Launch("a", 0, None, 0, path), TrainerView("a", 0.0, 0.0, phase="train")
        trainer = Trainer(launch, ProcessId(1, 1), view, Stillness(0.0, 0.0), 0.0)
        timings = SimpleNamespace(step=SimpleNamespace(observe=lambda _: None))
        counted = SimpleNamespace(nonfinite=0, last_step_at=None)
        state = RunState(Phase.TRAINING, 0.0, trainer=trainer)
        self.run = Run(*cast(Any, (None, state, *[None] * 5, timings, None, counted)))
        control = TrainerControl(self.run)
        control.guarded = guarded
        self.later: list[bytes] = []  # said once the words before are taken in
        self.supervisor = Supervisor.__new__(Supervisor)
        self.supervisor.context = cast(Any, SimpleNamespace(waiter=self.waiter))
        self.supervisor.effects = cast(Any, SimpleNamespace(trainer=control))
        self.supervisor.run = cast(Any, SimpleNamespace(note_time=self._go_on))

    def say(self, words: bytes) -> None:
        self.trainer.send(b"LAUNCH=a\n" + words)

    def _go_on(self) -> None:
        if self.later:
            self.say(self.later.pop(0))
        else:
            os.write(self.guard, b"\n")

    def step(self) -> int:
        """The newest step that was taken in when the wait is over."""
        self.supervisor._wait(LONG_S)
        assert self.run.state.trainer is not None
        return self.run.state.trainer.step


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(tmp_path / "s")
    yield made
    made.waiter.close()


def test_words_of_steps_are_taken_in_without_an_end_of_the_wait_and_the_guards_report_ends_it(
    waiting: Waiting,
) -> None:
    waiting.later = [b"PHASE=train\nSTEP=%d" % step for step in range(2, 21)]
    waiting.say(b"PHASE=train\nSTEP=1")
    assert waiting.step() == 20


@pytest.mark.parametrize(
    "more",
    [b"PHASE=checkpoint", b"PHASE=train\nFINISHED=steps", b"PHASE=train\nCHECKPOINT=/a", b"NUMERICS={}"],
)
def test_a_word_of_more_than_steps_ends_the_wait(waiting: Waiting, more: bytes) -> None:
    waiting.later = [more, b"PHASE=train\nSTEP=9"]
    waiting.say(b"PHASE=train\nSTEP=1")
    assert waiting.step() == 1
