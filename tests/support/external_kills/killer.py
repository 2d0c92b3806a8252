"""When a launch dies, and who is killed: drawn by a seed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.process import ProcessId, children_tree, signal_process
from stoker.store.layout import TRAIN_SUPERVISOR
from support.external_kills.scenario import Pace
from support.processes import RunningDaemon, daemon_command, start_daemon, wait_gone
from support.training import GUARD, TrainPipeline, runs
from support.waiting import wait_until

# Half of them within a save: in its pause, or while its last file lacks little; some just after one.
MOMENTS = ("pause", "end", "after", "anywhere", "save", "pause", "anywhere", "save", "anywhere", "anywhere")
TARGETS = ("trainer", "supervisor", "tree", "all", "guard", "trainer", "stop", "pause", "worker")


@dataclass(frozen=True)
class Kill:
    """Whom to kill, and when: `delay_s` after the `nth` note of this kind (first a step, then any)."""

    target: str
    moment: str
    note: str
    nth: int
    delay_s: float


def draw_kills(kills: int, dice: random.Random, pace: Pace) -> list[Kill]:
    """The plan: each moment and target as often as in the lists; of few kills, the first moments."""
    drawn = zip(_deck(dice, MOMENTS[:kills], kills), _deck(dice, TARGETS, kills), strict=True)
    return [_draw(dice, moment, target, pace) for moment, target in drawn]


def _deck(dice: random.Random, cards: Sequence[str], number: int) -> list[str]:
    found: list[str] = []
    while len(found) < number:
        found += dice.sample(cards, len(cards))
    return found[:number]


def _draw(dice: random.Random, moment: str, target: str, pace: Pace) -> Kill:
    half_s = (pace.save_s - pace.pause_s) / 2
    note, first_s, last_s = {
        "pause": ("part", 0.0, pace.pause_s),
        "save": ("writing", 0.0, pace.save_s),
        "end": ("writing", 0.8 * half_s, half_s),
        "after": ("finished", 0.0, pace.quiet_s + 2),
        "anywhere": ("step", 0.0, 2 * pace.period_s),
    }[moment]
    nth = 1 if note == "step" else dice.choice((1, 1, 2))
    if note == "writing":  # a save notes it again after its pause
        nth = 2 * nth - (moment == "save")
    return Kill(target, moment, note, nth, dice.uniform(first_s, last_s))


class Victim:
    """A supervisor that is started again whenever it was killed or stopped, and all that it runs."""

    def __init__(self, run: TrainPipeline, environ: dict[str, str], dice: random.Random) -> None:
        self.run, self._environ, self._dice = run, environ, dice
        self.daemon = self._start()

    def strike(self, kill: Kill) -> None:
        """Kill, and start again what nobody else starts."""
        getattr(self, f"_{kill.target}")()

    def stop(self) -> int:
        """Ask all to end; the supervisor's exit code."""
        return self.daemon.stop(self.run.data.pipeline.supervise.stop_time + 60)

    def ask(self, verb: str) -> subprocess.CompletedProcess[str]:
        """A command of `stoker` with the pipeline file."""
        code = "import sys; from stoker.cli.main import main; sys.exit(main())"
        words = [sys.executable, "-c", code, *verb.split(), str(self.run.data.file)]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    def _start(self) -> RunningDaemon:
        home = self.run.data.home
        command = daemon_command(TRAIN_SUPERVISOR, self.run.data.file)
        return start_daemon(command, home.parent / "supervisor.err", environ=self._environ)

    def _programs(self) -> list[ProcessId]:
        """The trainer's processes without their guard."""
        return [one for one in self.run.processes() if not runs(one, GUARD) and _runs_script(one)]

    def _kill(self, find: Callable[[], list[ProcessId]]) -> None:
        for one in find():
            signal_process(one, signal.SIGKILL)

    def _trainer(self) -> None:
        self._kill(lambda: [self._dice.choice(self._programs())])

    def _tree(self) -> None:
        self._kill(self.run.processes)

    def _guard(self) -> None:
        self._kill(self.run.guards)

    def _supervisor(self) -> None:
        self.daemon.kill()
        self.daemon = self._start()

    def _all(self) -> None:
        processes = [*children_tree(self.daemon.pid), *self.run.processes()]
        self.daemon.kill()
        self._kill(lambda: processes)
        self.daemon = self._start()

    def _worker(self) -> None:
        """The worker that looks at the saves, and a little later the trainer."""
        module = ("-m", "stoker.checkpoints.external.worker")
        self._kill(lambda: [one for one in children_tree(self.daemon.pid) if runs(one, module)])
        time.sleep(self._dice.uniform(0, 1))
        self._trainer()

    def _stop(self) -> None:
        self.stop()
        self.daemon = self._start()

    def _pause(self) -> None:
        """Ask for a pause; sometimes kill the trainer while it makes its last save."""
        trainer = self._programs()
        assert (done := self.ask("pause")).returncode == 0, done.stderr
        if self._dice.random() < 0.5:
            time.sleep(self._dice.uniform(0, 0.1 * self.run.data.pipeline.supervise.stop_time))
            self._kill(lambda: trainer)
        wait_gone(trainer, self.run.data.pipeline.supervise.stop_time + 60)
        wait_until(lambda: not self.run.processes(), what="the end of the guard")
        assert (done := self.ask("resume")).returncode == 0, done.stderr


def _runs_script(process: ProcessId) -> bool:
    try:
        return b"train.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
