"""The examples in etc/external, beside the printed client and a little data, under their supervisor."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from stoker.cli.main import cli
from stoker.config.load import examples_dir
from stoker.kit.process import ProcessId
from support.external_trainer import make_external
from support.training import TrainPipeline
from support.waiting import wait_until

VOCAB = 64

# Beside the client: notes in a file each step that it is told, also those that it does not pass on.
NOTES = """

_phase = Stoker.phase


def _noted(self: Stoker, name: str, step: Any = None, done: Any = None, **words: Any) -> None:
    if step is not None:
        with open(f"told-{self._launch}", "a") as told:
            told.write(f"{step}\\n")
    _phase(self, name, step, done, **words)


Stoker.phase = _noted
"""


def make_example(home: Path, script: str, *words: str, marked: bool = True, **external: Any) -> TrainPipeline:
    """Write an example as train.py and its pipeline file; not `marked`: without the lines for Stoker."""
    text = (examples_dir() / "external" / script).read_text()
    if not marked:
        text = "".join(re.findall(r".*(?<!# stoker)\n", text))
    run = make_external(home, text, *words, train__external=external, supervise__stop_time="60s")
    if marked:
        (home / "stoker_client.py").write_text(CliRunner().invoke(cli, ["client"]).output + NOTES)
    (home / "data").mkdir()
    random = np.random.default_rng(0)
    for split, tokens in (("train", 20_000), ("val", 1_000)):
        walk = np.cumsum(random.choice([1, 2, 3], tokens)) % VOCAB
        walk.astype(np.uint16).tofile(home / f"data/{split}.bin")
    return run


class Example:
    """An example that runs under its supervisor; launches are counted from 1."""

    def __init__(self, run: TrainPipeline) -> None:
        self.run = run

    def __enter__(self) -> Example:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the supervisor."""
        self._daemon = self.run.start()

    def stop(self) -> int:
        """Stop it, and so the trainer; its exit code."""
        return int(self._daemon.stop())

    def launched(self, launch: int) -> dict[str, Any]:
        """The event of that launch, awaited."""
        return self._event("trainer_launched", launch)

    def ended(self, launch: int) -> dict[str, Any]:
        """The event of its end, awaited."""
        return self._event("trainer_exited", launch)

    def _event(self, word: str, number: int) -> dict[str, Any]:
        found = wait_until(lambda: self.run.events(word)[number - 1 :], what=f"{word} {number}")
        return dict(found[0])

    def told(self, launch: int) -> list[int]:
        """The steps that the client of that launch was told so far, at least one."""
        file = self.run.data.home / f"told-{self.launched(launch)['launch']}"
        return list(map(int, wait_until(lambda: file.exists() and file.read_text().split(), what="a step")))

    def printed(self, launch: int, text: str) -> None:
        """Await that the launch prints this."""
        output = self.run.run.output(self.launched(launch)["launch"])
        wait_until(lambda: output.exists() and text in output.read_text(), what=f"{text} in the output")

    def sealed(self, after: int = 0) -> int:
        """The newest sealed step, awaited until it is higher than `after`."""

        def newest() -> int:
            steps = [event["step"] for event in self.run.events("checkpoint_sealed")]
            return max((step for step in steps if step > after), default=0)

        return wait_until(newest, what=f"a sealed checkpoint after step {after}")

    def trainer(self) -> ProcessId:
        """The trainer's process, awaited."""
        return wait_until(lambda: list(filter(_runs_script, self.run.processes())), what="a trainer")[0]

    def dump(self, text: str) -> None:
        """Ask the trainer for its stacks; await that they tell this."""
        file = self.run.run.stacks(self.run.events("trainer_launched")[-1]["launch"], 0)
        os.kill(self.trainer().pid, signal.SIGUSR2)
        wait_until(lambda: text in file.read_text(), what=f"stacks with {text}")


def _runs_script(process: ProcessId) -> bool:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[1] == b"train.py"
    except (OSError, IndexError):
        return False
