"""How long each daemon takes from its console script's launch to READY, and how much memory it then holds."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from benchlib.runner import Measures, Scenario

DAEMONS = ("stoker-download-watchdog", "stoker-stage-shard", "stoker-train-supervisor")
LONGEST_S = 30.0
OLDER = os.environ.get("STOKER_BENCH_OLDER", "")  # a checkout that is measured in turns with this one
BEFORE = ["env", f"PYTHONPATH={OLDER}/lib:{OLDER}/daemons"]

PIPELINE = """\
name: bench
state: state
hot: hot
dataset: {name: empty, source: {kind: folder, path: source}}
tokenizer: {train: {vocab_size: 4096, train_bytes: 4MB}}
shard: {workers: 1, release: never}
train: {steps: 10, model: demo, seq_len: 256, global_batch: 16, micro_batch: 16}
metrics: {ports: {download: 0, shard: 0, train: 0}}
"""

READY = "event=daemon_ready"  # in a daemon's log
BARE = f"import os, signal; os.write(2, b'{READY}'); signal.pause()"


class Start(Scenario):
    """Launch to READY and resident memory of each daemon, beside a bare Python that says READY at once.

    STOKER_BENCH_OLDER names a checkout whose daemons are started in turns with these, with our libraries.
    """

    name = "start"
    repeats = 7
    limits: ClassVar = {"ready_s": 0.5, "rss_bytes": 45 * 2**20}

    def prepare(self, directory: Path) -> None:
        (directory / "source").mkdir()
        (directory / "bench.yaml").write_text(PIPELINE)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        scripts = Path(sys.executable).parent
        commands = {"python": [sys.executable, "-c", BARE]}
        for daemon in DAEMONS:
            commands[daemon] = [str(scripts / daemon), "bench.yaml"]
            if OLDER:
                commands[f"{daemon} before"] = [*BEFORE, *commands[daemon]]
        return {
            name: lambda at, command=command: measure_start(command, at) for name, command in commands.items()
        }


def measure_start(command: list[str], directory: Path) -> Measures:
    """Start a daemon, wait for its READY, look at its memory, stop it; RuntimeError when any of it fails.

    `life_cpu_s` is the CPU time from start to end, its workers' too.
    """
    before_s = children_cpu_s()
    with (directory / "stderr.log").open("wb") as errors:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )
    try:
        _wait_ready(process, directory)
        ready_s = time.monotonic() - began
        measures = {"ready_s": ready_s, "cpu_s": cpu_s(process.pid), "rss_bytes": rss_bytes(process.pid)}
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(LONGEST_S)
        return {**measures, "stop_s": time.monotonic() - began, "life_cpu_s": children_cpu_s() - before_s}
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], directory: Path) -> None:
    give_up = time.monotonic() + LONGEST_S
    while READY not in (said := (directory / "stderr.log").read_text(errors="replace")):
        if time.monotonic() > give_up or process.poll() is not None:
            command = process.args[0]  # type: ignore[index] # it was started with a list
            raise RuntimeError(f"{command!s} was not ready within {LONGEST_S:g} s; it said:\n{said[-2000:]}")
        time.sleep(0.002)


def cpu_s(pid: int) -> float:
    # What the start costs whatever else the machine does meanwhile: user and system time.
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    """The CPU time of this process's children that have ended, with all that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rss_bytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return float(status.split("VmRSS:")[1].split()[0]) * 1024
