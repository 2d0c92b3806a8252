"""The mean of five checkpoints of 500 MB beside cat of their bytes into one file (the scale), all warm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.scenarios.release_bundle import SHAPE, made_up, seal

CHECKPOINTS, MB = 5, 10**6
# The command; the seconds are those of the mean alone, from the first byte that is read of weights which are
# proven to the last one that is written.
COMMAND = r"""
import re, sys, time
from pathlib import Path
from stoker.cli import transformers_model
from stoker.cli.main import exit_code
whole = transformers_model.write_model
def timed(*arguments):
    began = time.monotonic()
    found = whole(*arguments)
    print(time.monotonic() - began)
    return found
transformers_model.write_model = timed
code = exit_code(["checkpoint", "export", *sys.argv[1:]])
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""
LEAST_SPEED, MOST_MB = 0.5, 600


class MeanScenario(Scenario):
    """Seconds of the mean of proven checkpoints, of the whole command with their proof, and its memory."""

    name = "release-mean"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        model = made_up(SHAPE)
        for step in range(1, CHECKPOINTS + 1):
            seal(directory / "checkpoints", {name: step * each for name, each in model.items()}, step=step)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "cat": self._cat,
            "mean": _export,
            "mean by shares": lambda home: _export(home, "--share", "0.1,0.1,0.2,0.2,0.4"),
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        means = [each for name, each in series.items() if name != "cat"]
        slowest = max(each["mean_s"].ratio or float("inf") for each in means)
        yield Bar("rate beside cat's", 1 / slowest, LEAST_SPEED, least=True)
        yield Bar("memory in MB", max(each["rss_bytes"].median for each in means) / MB, MOST_MB)

    def _cat(self, home: Path) -> Measures:
        files, copy = sorted(home.glob("checkpoints/*/model-*")), home / "copy"
        copy.unlink(missing_ok=True)
        _warm(home)
        began = time.monotonic()
        with copy.open("wb") as out:
            subprocess.run(["cat", *files], check=True, stdout=out)
        seconds = time.monotonic() - began
        copy.unlink()
        with Path("/dev/null").open("wb") as null:
            began = time.monotonic()
            subprocess.run(["cat", *files], check=True, stdout=null)
        return {"mean_s": seconds, "null_s": time.monotonic() - began}


def _warm(home: Path) -> None:
    os.sync()
    for file in home.glob("checkpoints/*/*"):
        file.read_bytes()


def _export(home: Path, *words: str) -> Measures:
    shutil.rmtree(home / "out", ignore_errors=True)
    _warm(home)
    command = [
        sys.executable,
        "-c",
        COMMAND,
        str(home),
        str(home / "out"),
        "--last",
        str(CHECKPOINTS),
        *words,
    ]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    whole_s = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    mean_s, *_, peak = done.stdout.split()
    return {"mean_s": float(mean_s), "whole_s": whole_s, "rss_bytes": 1024.0 * int(peak)}
