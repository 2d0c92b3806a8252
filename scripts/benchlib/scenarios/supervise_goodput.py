"""What is left of the time where a trainer is killed again and again, and whether the books hold it all."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.supervised import Supervised

EVERY_S = 5.0  # T: between two checkpoints
MOST_BETWEEN_S = 300.0  # M: between two kills, as far as the length has room for six
SEED = 16


class SuperviseGoodputScenario(Scenario):
    """A run with a checkpoint every 5 s (T) whose trainer is killed at random (M on average) for some time.

    Goodput beside 1 - (T/2 + R) / M, with R from a kill to the first new step, and M as the kills came.
    --seconds 3600 is the full length, with 300 s between kills.
    """

    name = "supervise-goodput"
    repeats = 1
    seconds = 360.0

    def prepare(self, directory: Path) -> None:
        self.supervised = Supervised(directory / "pipeline")

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {"killed": lambda _: self._killed()}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        found = {name: one.median for name, one in series["killed"].items()}
        share = found["goodput"] / found["goodput_expected"]
        yield Bar("goodput, x 1 - (T/2 + R) / M", share, 0.98, least=True)
        yield Bar("buckets of runs.jsonl and wall time differ by", abs(found["booked"] - 1), 0.001)
        yield Bar("buckets and undecided steps and uptime differ by", abs(found["shown"] - 1), 0.001)

    def _killed(self) -> Measures:
        run, draw = self.supervised, random.Random(SEED)
        run.set_up({"checkpoint": {"every": f"{EVERY_S}s"}})
        between_s, back_s = min(MOST_BETWEEN_S, self.seconds / 6), list[float]()
        with run.supervisor():
            run.wait(run.run.record.exists, "run")
            begun = time.monotonic()
            run.wait_for_checkpoint()
            before = run.shown()
            end = time.monotonic() + self.seconds
            while (kill_at := time.monotonic() + draw.expovariate(1 / between_s)) < end:
                time.sleep(kill_at - time.monotonic())
                back_s.append(self._kill())
            time.sleep(max(0.0, end - time.monotonic()))
            after = run.shown()
        steps = max(int(path.name.removeprefix("step-")) for path in run.sealed())
        run.set_up({"steps": steps})
        with run.supervisor():
            run.wait(lambda: json.loads(run.run.record.read_bytes())["state"] == "finished", "end of the run")
            ended = time.monotonic()
        booked_s = sum(sum(end["seconds"].values()) for end in run.launch_ends())
        gained = {name: after[name] - before[name] for name in after}
        between_s, restart_s = gained["wall_s"] / len(back_s), statistics.mean(back_s)
        return {
            "kills": len(back_s),
            "between_s": between_s,
            "restart_s": restart_s,
            "goodput": gained["steps_s"] / (gained["wall_s"] - gained["undecided_s"]),
            "goodput_expected": 1 - (EVERY_S / 2 + restart_s) / between_s,
            "shown": gained["wall_s"] / gained["uptime_s"],
            "booked": booked_s / (ended - begun),
        }

    def _kill(self) -> float:
        run = self.supervised
        began = run.kill(run.wait(run.trainer, "trainer"))
        return run.wait_for_step(1) - began
