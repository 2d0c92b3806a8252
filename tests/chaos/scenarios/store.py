"""The store's own files: a process that appends, records and publishes dies anywhere and loses nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import ClassVar

from chaos.driver import Launch, Scenario
from chaos.job import Job
from stoker.store.files import make_dir, publish_dir, remove_tree, sweep_temporaries
from stoker.store.log import ChainedLog, read_log
from stoker.store.record import read_record, write_record

TURNS = 40


class StoreScenario(Scenario):
    """Forty turns of append, publish and record; a restart goes on where the log ends."""

    name = "store"
    calls: ClassVar = {"fsync": 5 * TURNS, "rename": 2 * TURNS, "write": 4 * TURNS}
    longest_s = 0.4

    def start(self, directory: Path) -> None:
        self.directory = directory

    def step(self, launch: Launch) -> Job:
        return Job(
            launch.command([sys.executable, "-m", __name__, str(self.directory)]),
            output=self.directory / "stderr",
        )

    def check(self) -> None:
        reading = read_log(self.directory / "log")
        assert [entry["n"] for entry in reading.entries] == list(range(TURNS))
        assert reading.damage == ()
        assert read_record(self.directory / "last.json") == {"v": 1, "n": TURNS - 1}
        for number in range(TURNS):
            assert (self.directory / "sets" / str(number) / "data").read_bytes() == bytes([number]) * 1000
        assert not list(self.directory.glob(".tmp-*"))


def main(directory: Path) -> None:
    """The job: each turn is done again until its log line stands."""
    sweep_temporaries(directory)
    make_dir(directory / "sets")
    log = ChainedLog(directory / "log")
    for number in range(0 if log.last is None else log.last["n"] + 1, TURNS):
        _tell("publish")
        _publish(directory, number)
        _tell("record")
        write_record(directory / "last.json", {"v": 1, "n": number})
        _tell("append")
        log.append({"v": 1, "n": number})


def _publish(directory: Path, number: int) -> None:
    target, temporary = directory / "sets" / str(number), directory / ".building"
    if target.exists():
        return
    remove_tree(temporary)
    make_dir(temporary)
    descriptor = os.open(temporary / "data", os.O_WRONLY | os.O_CREAT, 0o640)
    os.write(descriptor, bytes([number]) * 1000)
    os.close(descriptor)
    publish_dir(temporary, target)


def _tell(phase: str) -> None:
    print(json.dumps({"kind": "phase", "phase": phase}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
