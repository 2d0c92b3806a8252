"""What looking costs with many source records: CPU of `stoker status` and its like, `stoker top` at rest."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.scenarios.records import write_state
from benchlib.scenarios.start import cpu_s, rss_bytes
from stoker.config.load import load_pipeline
from stoker.observe.status import read_status

COUNTS = (10, 50_000)
LOOKS = {"status": ["status"], "json": ["status", "--json"], "events": ["events"], "describe": ["describe"]}
STOKER = str(Path(sys.executable).parent / "stoker")
READY_S, REST_S, LONGEST_S = 10.0, 30.0, 120.0


class Status(Scenario):
    """`stoker status`, `events` and `describe` with 10 (the scale) and 50,000 sources; `stoker top` at rest.

    The stage-shard loop has begun on the sources, and runs meanwhile. Each measure but those of `top` is the
    command's CPU time from start to end.
    """

    name = "status"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            for count in COUNTS:
                write_state(directory / str(count), count)
                self._start(directory / str(count))
        except BaseException:
            self.finish()
            raise

    def _start(self, home: Path) -> None:
        """Start the stage-shard loop, and wait until its status counts the sources."""
        with (home / "stderr.log").open("wb") as errors:
            command = [str(Path(sys.executable).parent / "stoker-stage-shard"), "bench.yaml"]
            self._daemons.append(subprocess.Popen(command, cwd=home, stdout=errors, stderr=errors))
        layout, until = load_pipeline(home / "bench.yaml").layout, time.monotonic() + LONGEST_S
        while not (body := read_status(layout)["stage_shard"]["body"]).get("sources"):
            if time.monotonic() > until or self._daemons[-1].poll() is not None:
                raise RuntimeError(f"the stage-shard loop has no status of its sources: {body}")
            time.sleep(0.05)

    def finish(self) -> None:
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(LONGEST_S)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            f"{count:,} sources": lambda directory, count=count: _looked(directory / str(count))
            for count in COUNTS
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        many = series[f"{COUNTS[-1]:,} sources"]
        for name in LOOKS:
            yield Bar(f"{name}: CPU beside {COUNTS[0]} sources", many[f"{name}_cpu_s"].ratio or 0.0, 1.2)
        for variant, measures in series.items():
            yield Bar(f"top, {variant}: bytes a second at rest", measures["top_bytes_per_s"].median, 500)
            yield Bar(f"top, {variant}: share of a core at rest", measures["top_core_ratio"].median, 0.01)
            yield Bar(f"top, {variant}: MB", measures["top_rss_bytes"].median / 1e6, 60)


def _looked(home: Path) -> Measures:
    thing = {"describe": ["stage-shard"]}
    measures = {
        f"{name}_cpu_s": _command_cpu_s([words[0], "bench.yaml", *words[1:], *thing.get(name, [])], home)
        for name, words in LOOKS.items()
    }
    return {**measures, "help_cpu_s": _command_cpu_s(["--help"], home), **_top_at_rest(home)}


def _command_cpu_s(words: list[str], home: Path) -> float:
    before = _children_cpu_s()
    subprocess.run([STOKER, *words], cwd=home, stdout=subprocess.DEVNULL, check=True, timeout=LONGEST_S)
    return _children_cpu_s() - before


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _top_at_rest(home: Path) -> Measures:
    """What `stoker top` writes and uses while nothing but the clock changes."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    top = subprocess.Popen(
        [STOKER, "top", "bench.yaml"], cwd=home, stdin=its, stdout=its, stderr=its, env=environ
    )
    os.close(its)
    written = [0]
    reader = threading.Thread(target=_count, args=(ours, written))
    reader.start()
    try:
        time.sleep(READY_S)
        began, cpu_before_s, bytes_before = time.monotonic(), cpu_s(top.pid), written[0]
        time.sleep(REST_S)
        lasted_s = time.monotonic() - began
        return {
            "top_bytes_per_s": (written[0] - bytes_before) / lasted_s,
            "top_core_ratio": (cpu_s(top.pid) - cpu_before_s) / lasted_s,
            "top_rss_bytes": rss_bytes(top.pid),
        }
    finally:
        top.send_signal(signal.SIGTERM)
        top.wait(LONGEST_S)
        reader.join(LONGEST_S)
        os.close(ours)


def _count(terminal: int, written: list[int]) -> None:
    try:
        while piece := os.read(terminal, 1 << 16):
            written[0] += len(piece)
    except OSError:  # EIO: the last process has closed it
        return
