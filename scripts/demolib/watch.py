"""Looking at a running pipeline from outside, through its files and the process table."""

from __future__ import annotations

import fcntl
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")


def until(condition: Callable[[], T | None], pipeline: subprocess.Popen[bytes]) -> T | None:
    """Wait for the condition's value; None when the pipeline ended first."""
    while True:
        value = condition()
        if value is not None or pipeline.poll() is not None:
            return value
        time.sleep(0.05)


def running_pipeline(state: Path) -> int | None:
    """The pid that holds the run lock of this state directory, or None."""
    lock = state / "locks" / "run.lock"
    if not lock.exists():
        return None
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(json.loads(file.read() or "{}").get("pid", 0))
    return None


def rows(log: Path) -> list[dict[str, Any]]:
    """The whole rows of a training log; a row being written is left out."""
    try:
        lines = log.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def past_a_checkpoint(run_dir: Path) -> tuple[int, int] | None:
    """(step of the log, step of the newest checkpoint) once training is strictly past a sealed checkpoint."""
    sealed = sorted((run_dir / "checkpoints").glob("step-*"))
    steps = [row["step"] for row in rows(run_dir / "log" / "metrics.jsonl") if "loss" in row]
    if not sealed or not steps:
        return None
    newest = int(sealed[-1].name.removeprefix("step-"))
    return (steps[-1], newest) if steps[-1] > newest + 1 else None


def trainer_of(run_dir: Path) -> psutil.Process | None:
    """The trainer process of this run, known by its run directory in the environment."""
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            is_trainer = arguments[1:3] == ["-m", "stoker.training.trainer"]
            if is_trainer and process.environ().get("STOKER_RUN_DIR") == str(run_dir):
                return process
        except psutil.Error:
            continue  # it ended while we looked, or is another user's
    return None


def resumed(run_dir: Path, killed: int) -> str | None:
    """The checkpoint a new trainer was started from, once there is one."""
    trainer = trainer_of(run_dir)
    if trainer is None or trainer.pid == killed:
        return None
    try:
        return Path(trainer.environ().get("STOKER_RESUME_FROM") or "the beginning").name
    except psutil.Error:
        return None
