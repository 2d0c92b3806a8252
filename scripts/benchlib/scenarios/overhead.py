"""What three idle daemons cost: CPU time, memory, and the time of a scrape."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from benchlib.runner import Measures, Scenario
from benchlib.scenarios.start import (
    BEFORE,
    DAEMONS,
    LONGEST_S,
    OLDER,
    PIPELINE,
    READY,
    cpu_s,
    rss_bytes,
)

SETTLE_S, IDLE_S = 10.0, 40.0
SCRAPE_EVERY_S = 5.0  # three times as often as deploy/prometheus does
LOCKS = ("download_watchdog", "stage_shard", "train_supervisor")
BARE = f"import os, signal; os.write(2, b'{READY}'); signal.pause()"


class Overhead(Scenario):
    """CPU share and memory of the three daemons together while nothing happens, and a scrape's time.

    STOKER_BENCH_OLDER names a checkout whose daemons idle in turns with these.
    """

    name = "overhead"
    repeats = 3
    limits: ClassVar = {"cpu_share": 0.01, "rss_bytes": 150e6, "scrape_s": 0.02}

    def prepare(self, directory: Path) -> None:
        (directory / "source").mkdir()
        (directory / "bench.yaml").write_text(PIPELINE)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        scripts = Path(sys.executable).parent
        daemons = [[str(scripts / daemon), "bench.yaml"] for daemon in DAEMONS]
        bare = [[sys.executable, "-c", BARE]] * len(DAEMONS)
        older = [[*BEFORE, *command] for command in daemons]
        before = {"idle before": lambda at: measure(older, at, scraped=False)} if OLDER else {}
        return before | {
            "python": lambda at: measure(bare, at, scraped=False),
            "idle": lambda at: measure(daemons, at, scraped=False),
            "scraped": lambda at: measure(daemons, at, scraped=True),
        }


def measure(commands: list[list[str]], directory: Path, *, scraped: bool) -> Measures:
    """Start all, let them settle, look at them for a while; stop them."""
    with running(commands, directory) as pids:
        time.sleep(SETTLE_S)
        began, before, took = time.monotonic(), sum(map(cpu_s, pids)), []
        while (now := time.monotonic()) < began + IDLE_S:
            if scraped:
                took += scrapes(directory)
            time.sleep(max(0.0, now + SCRAPE_EVERY_S - time.monotonic()))
        used = sum(map(cpu_s, pids)) - before
        measures = {"cpu_share": used / (time.monotonic() - began), "rss_bytes": sum(map(rss_bytes, pids))}
    return {**measures, "scrape_s": statistics.median(took)} if took else measures


@contextlib.contextmanager
def running(commands: list[list[str]], directory: Path) -> Iterator[list[int]]:
    """Run commands until the block ends; RuntimeError unless each gets READY."""
    logs = [directory / f"stderr-{number}.log" for number in range(len(commands))]
    processes = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as errors:
                processes.append(
                    subprocess.Popen(
                        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
                    )
                )
        give_up = time.monotonic() + LONGEST_S
        while not all(READY in log.read_text(errors="replace") for log in logs):
            if time.monotonic() > give_up:
                raise RuntimeError(f"not ready within {LONGEST_S:g} s; see {directory}/stderr-*.log")
            time.sleep(0.05)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def scrapes(directory: Path) -> Iterator[float]:
    """Scrape each daemon once; yield the seconds."""
    for daemon in LOCKS:
        holder = json.loads((directory / "state" / "locks" / f"{daemon}.lock").read_text())
        began = time.perf_counter()
        with urllib.request.urlopen(f"http://{holder['metrics']}/metrics", timeout=LONGEST_S) as answer:
            answer.read()
        yield time.perf_counter() - began
