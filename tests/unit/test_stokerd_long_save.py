"""A stop that waits for a save which gets on asks systemd for more time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.kit.process import ProcessId, sample_process
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stoker.systemd.notify import Notifier
from stokerd.supervision.run import Run
from stokerd.supervision.trainer.control import TrainerControl
from support.halting import wait_halted
from support.waiting import wait_until


def test_only_while_it_stops_and_only_while_the_trainers_tree_works(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    context = SimpleNamespace(stopping=False, notifier=Notifier({"NOTIFY_SOCKET": path}))
    now = time.monotonic()
    launch = Launch("l1", 0, None, 0, Path("x.sock"))
    trainer = Trainer(launch, ProcessId(1, 1), TrainerView("l1", now, now), Stillness(now, now), 0.0)
    run = Run(*cast(Any, (context, RunState(Phase.TRAINING, 0.0, trainer=trainer), *[None] * 7)))
    control = TrainerControl(run)
    guarded = SimpleNamespace(poll=lambda: None, drain=list, trainer_pid=None, pid=os.getpid())
    control.guarded = cast(Any, guarded)

    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd,
        subprocess.Popen(["sh", "-c", "while :; do :; done"]) as sealer,
    ):
        systemd.bind(path)

        def heard() -> list[bytes]:
            """What one look at the trainer has it say."""
            run.change(trainer=replace(cast(Trainer, run.state.trainer), sample_at=0.0))
            control.hear()
            with contextlib.suppress(BlockingIOError):
                return [systemd.recv(4096)]
            return []

        def work() -> None:
            used_s = sample_process(sealer.pid).cpu_s
            wait_until(lambda: sample_process(sealer.pid).cpu_s > used_s + 0.1, what="work")

        try:
            work()
            assert heard() == []
            context.stopping = True
            work()
            assert heard() == [b"EXTEND_TIMEOUT_USEC=60000000"]
            sealer.send_signal(signal.SIGSTOP)
            wait_halted(sealer.pid)
            heard()  # of what it did until then
            assert heard() == []
        finally:
            sealer.kill()
