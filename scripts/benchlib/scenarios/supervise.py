"""What the train supervisor costs and how fast it is back, each beside the same without it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.scenarios.start import cpu_s
from benchlib.supervised import Supervised, peak_bytes, wake_ups
from stoker.supervise.run.launch_record import TRAINER

All = Mapping[str, Mapping[str, Series]]
# 12 bytes a parameter with AdamW: 4, 300 and 1,200 MB.
SMALL = {"layers": 1, "width": 64, "heads": 2, "ffn_width": 128}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "4 MB": SMALL,
    "300 MB": {"layers": 8, "width": 512, "heads": 8, "ffn_width": 1344},
    "1200 MB": {"layers": 12, "width": 768, "heads": 12, "ffn_width": 2304},
}
LOOK_S, SETTLE_S = 30.0, 5.0
WARM_STEPS, PAIR_STEPS = 20, 30
FAST = {"model": SMALL, "seq_len": 32, "global_batch": 1}
WORDS_A_SECOND = 100
MOST_SHARES = {"finished run": 0.003, "100 steps a second": 0.01, "100 words a second": 0.03}  # of a core


class SuperviseMemoryScenario(Scenario):
    """The most that the supervisor ever holds, by the size of the checkpoints sealed and proven under it."""

    name = "supervise-memory"
    repeats = 1

    def prepare(self, directory: Path) -> None:
        self.supervised = Supervised(directory / "pipeline")

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {name: lambda _, name=name: self._peak(name) for name in SIZES}

    def bars(self, series: All) -> Iterator[Bar]:
        for name in SIZES:
            peak = series[name]["peak_rss_bytes"].median
            yield Bar(f"{name}: the supervisor's peak RSS, MiB", peak / 2**20, 45)

    def _peak(self, name: str) -> Measures:
        run, small = self.supervised, {"seq_len": 64, "global_batch": 1, "micro_batch": 1}
        saving = {"checkpoint": {"every": None, "every_steps": 3, "keep_last": 1}}
        run.set_up({"model": SIZES[name], **small, **saving}, run=name.lower().replace(" ", "-"))
        with run.supervisor() as pid:
            for _ in range(2):
                run.wait_for_checkpoint()
            size = sum(file.stat().st_size for file in run.sealed()[-1].iterdir())
            return {"peak_rss_bytes": float(peak_bytes(pid)), "checkpoint_bytes": float(size)}


class SuperviseRestartScenario(Scenario):
    """A trainer's kill -9 to the first new step, beside a bare start of the same trainer (the scale)."""

    name = "supervise-restart"
    repeats = 5

    def prepare(self, directory: Path) -> None:
        self.supervised = Supervised(directory / "pipeline")
        self.supervised.set_up({"checkpoint": {"every": None, "every_steps": 20}})
        self.environment: dict[str, str] = {}
        self._killed()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {"bare start": lambda _: self._bare(), "after a kill": lambda _: self._killed()}

    def bars(self, series: All) -> Iterator[Bar]:
        ratio = series["after a kill"]["first_step_s"].ratio
        assert ratio is not None
        yield Bar("kill to first new step less back-off, x a bare start", ratio, 1.25)

    def _bare(self) -> Measures:
        """The launch that a supervisor made last, again and from the same checkpoint."""
        run = self.supervised
        run.forget_steps()
        began = time.monotonic()
        trainer = subprocess.Popen(TRAINER, env=self.environment, stdin=subprocess.DEVNULL)
        try:
            return {"first_step_s": run.wait_for_step(1) - began, "cpu_s": cpu_s(trainer.pid)}
        finally:
            trainer.kill()
            trainer.wait()

    def _killed(self) -> Measures:
        run = self.supervised
        with run.supervisor():
            trainer = run.wait(run.trainer, "trainer")
            run.wait_for_checkpoint()
            before_s = run.seconds_of("backoff")
            began = run.kill(trainer)
            first_s = run.wait_for_step(1) - began
            self.environment = run.environment(run.wait(run.trainer, "trainer").pid)
            backoff_s = run.wait(lambda: run.seconds_of("backoff") - before_s, "back-off")
        return {"first_step_s": first_s - backoff_s, "backoff_s": backoff_s}


class SuperviseSpeedScenario(Scenario):
    """One trainer by turns with a stopped supervisor (the scale) and with one that watches it.

    On a machine with other work the time of a step tells little; the CPU time that a supervisor takes does.
    """

    name = "supervise-speed"
    repeats = 15

    def prepare(self, directory: Path) -> None:
        self.supervised, self._stack = Supervised(directory / "pipeline"), ExitStack()
        self.pid = self._stack.enter_context(self.supervised.supervisor())
        self.trainer = self.supervised.wait(self.supervised.trainer, "trainer")
        self.supervised.wait_for_step(WARM_STEPS)

    def finish(self) -> None:
        self._stack.close()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {"alone": lambda _: self._look(is_alone=True), "watched": lambda _: self._look(is_alone=False)}

    def bars(self, series: All) -> Iterator[Bar]:
        rate = series["watched"]["steps_per_s"].ratio
        assert rate is not None
        yield Bar("tokens a second, x alone", rate, 0.995, least=True)
        share = series["watched"]["cpu_of_trainers"].median
        yield Bar("the supervisor's CPU time, x the trainer's", share, 0.005)

    def _look(self, *, is_alone: bool) -> Measures:
        if is_alone:
            os.kill(self.pid, signal.SIGSTOP)
        try:
            began = self.supervised.wait_for_step(first := self.supervised.step() + 2)
            own_s, trainer_s = cpu_s(self.pid), cpu_s(self.trainer.pid)
            took_s = self.supervised.wait_for_step(first + PAIR_STEPS) - began
            trainer_s = cpu_s(self.trainer.pid) - trainer_s
            share = (cpu_s(self.pid) - own_s) / trainer_s
            return {
                "step_s": took_s / PAIR_STEPS,
                "steps_per_s": PAIR_STEPS / took_s,
                "cpu_of_trainers": share,
            }
        finally:
            os.kill(self.pid, signal.SIGCONT)


class SuperviseCostScenario(Scenario):
    """The supervisor's CPU and wake-ups: with nothing to do (the scale), beside quick steps, many words."""

    name = "supervise-cost"
    repeats = 2

    def prepare(self, directory: Path) -> None:
        self.supervised = Supervised(directory / "pipeline")

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "finished run": lambda _: self._cost("idle", {"steps": WARM_STEPS}, words=0),
            "100 steps a second": lambda _: self._cost("fast", FAST, words=0),
            "100 words a second": lambda _: self._cost("words", {}, words=WORDS_A_SECOND),
        }

    def bars(self, series: All) -> Iterator[Bar]:
        for name, most in MOST_SHARES.items():
            yield Bar(f"{name}: share of a core", series[name]["cpu_share"].median, most)

    def _cost(self, name: str, train: Mapping[str, Any], *, words: int) -> Measures:
        run = self.supervised
        run.set_up(train, run=name)
        with run.supervisor() as pid, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            run.wait(run.status, "status")
            run.wait_for_step(WARM_STEPS)
            if name == "idle":
                run.wait(lambda: run.status().get("at_rest"), "rest")
            time.sleep(SETTLE_S)
            began, cpu, wakes, step = time.monotonic(), cpu_s(pid), wake_ups(pid), run.step()
            if words:
                self._speak(speaker, words)
            else:
                time.sleep(LOOK_S)
            took_s = time.monotonic() - began
            share = (cpu_s(pid) - cpu) / took_s
            measures = {"cpu_share": share, "cpu_of_day_s": share * 86400}
            measures["wake_ups_per_s"] = (wake_ups(pid) - wakes) / took_s
            return {**measures, "steps_per_s": (run.step() - step) / took_s}

    def _speak(self, speaker: socket.socket, words: int) -> None:
        """Tells as a trainer does that says each step."""
        run = self.supervised
        launch, until = run.status()["launch"], time.monotonic() + LOOK_S
        speaker.connect(str(run.pipeline.runtime.notify_socket(run.run.root.name)))
        while time.monotonic() < until:
            speaker.send(f"LAUNCH={launch}\nPHASE=train\nSTEP={run.step()}\nLOSS=2.5".encode())
            time.sleep(1 / words)
