"""The data's way: daemons and workers die anywhere; the shard sets come out as if nothing had been.

The reference is built in peace, in another order, by one worker at a time, with other batches and commits.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from chaos.driver import Launch, Scenario
from chaos.job import MARK, Job
from stoker.corpus.records.sources import Source
from stoker.kit.process import processes_with_environment
from support.builds import run_to_end
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import daemon_command
from support.shard_state import Shard

FILES = 3
_MODULE = re.compile(r"stoker(?:\.\w+)+\.(\w+)_worker|from stokerd\.(\w+)")


class DataScenario(Scenario):
    """Receipts and shard sets of a small folder with a twin and a damaged file in it."""

    name = "data"
    targets = ("daemon", "build", "any worker")
    # Counted for each process by itself: a worker makes some dozens of them, the daemons somewhat more.
    calls: ClassVar = {"fsync": 25, "rename": 10, "write": 40}
    longest_s = 3.0
    limit_s = 120.0

    def __init__(self) -> None:
        self._tokenizer: Path | None = None
        self._reference: dict[str, dict[str, bytes]] = {}
        self._rounds = 0

    def start(self, directory: Path) -> None:
        self._rounds += 1
        self.data = make_pipeline(
            directory,
            shard__workers=1 + self._rounds % 2,
            shard__commit={"every": "0.01s" if self._rounds % 2 else "2s", "bytes": "16KiB"},
            stage__queue_files=2 + self._rounds % 3,
        )
        for number in range(FILES):
            write_fineweb(self.data.source / f"{number:03d}.parquet", 160, seed=number, row_group=40)
        write_fineweb(self.data.source / "001-twin.parquet", 160, seed=1, row_group=40)
        flip_page(write_fineweb(self.data.source / "damaged.parquet", 160, seed=9, row_group=40), row_group=2)

    def step(self, launch: Launch) -> Job:
        command = [sys.executable, "-m", __name__, str(self.data.file)]
        return DataJob(launch.command(command), output=self.data.home / "said")

    def check(self) -> None:
        states = self.data.states()
        assert {states.pop(twin) for twin in ("001.parquet", "001-twin.parquet")} == {"duplicate", "released"}
        assert states.pop("damaged.parquet") == "quarantined"
        assert list(states.values()) == ["released"] * (FILES - 1)
        assert self.data.reasons()["damaged.parquet"]["row_group"] == 2
        assert self.data.pin().complete
        hot = self.data.pipeline.hot_layout
        assert not [*hot.building.iterdir(), *hot.parquet.iterdir()]
        built = [source for source in self.data.sources().values() if source.state == "released"]
        if not self._reference:
            self._reference = reference(self.data, built)
        assert self.data.sets() == self._reference


def reference(data: DataPipeline, built: list[Source]) -> dict[str, dict[str, bytes]]:
    """The sets as the build worker makes them in peace, last file first, in batches of 61 rows."""
    apart, shard = data.home / "reference", Shard(data)
    for source in reversed(built):
        shard.dataset.put(replace(source, state="building"))
        task = shard.task("build", source.path)
        del task["room"]  # it may take all it needs
        key16 = Path(task["target"]).name
        task |= {
            "parquet": str(data.source / source.path),
            "building": str(apart / ".building" / key16),
            "target": str(apart / "shards" / key16),
            "read_rows": 61,
            "commit": {"every_s": 3600.0, "bytes": 1 << 40},
        }
        assert run_to_end("stoker.shards.build.build_worker", task)["status"] == "published"
    shard.close()
    return {
        folder.name: {
            file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.name != "build.json"
        }
        for folder in (apart / "shards").iterdir()
    }


class DataJob(Job):
    """One daemon after the other; a victim is found by what it runs, and that is its phase too."""

    def __init__(self, command: list[str], *, output: Path) -> None:
        super().__init__(command, output=output)
        self._struck = "a daemon or worker"

    def pid(self, target: str) -> int | None:
        running = {}
        for process in processes_with_environment(MARK, self._mark):
            try:
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if (found := _MODULE.search(words)) and "strace" not in words:
                running[process.pid] = found[1] or found[2]
        wanted = {
            "daemon": lambda name: name in ("download_watchdog", "stage_shard"),
            "build": lambda name: name == "build",
            "any worker": lambda name: name not in ("download_watchdog", "stage_shard"),
        }[target]
        # The newest: the oldest is always the lister.
        chosen = next((pid for pid, name in sorted(running.items(), reverse=True) if wanted(name)), None)
        if chosen is not None:
            self._struck = running[chosen]
        return chosen

    def phase(self, target: str) -> str:
        return self._struck


def main(file: Path) -> int:
    """Run both daemons with --once; a daemon that was killed ends the job."""
    for daemon in ("download_watchdog", "stage_shard"):
        if code := subprocess.run(daemon_command(daemon, file, "--once"), check=False).returncode:
            return 1 if code < 0 else code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
