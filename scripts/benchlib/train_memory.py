"""Prints the most memory that the first step of a loop holds above what it had before, in bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchlib.train_loops import PlainLoop, StokerLoop, planned_batch
from benchlib.train_run import PreparedRun, Workload
from stoker.training.launch import read_launch


def main(which: str, home: Path, train: str, vocab: str) -> None:
    """Prepares the loop with its optimizer's state, then makes one step."""
    workload = Workload(json.loads(train), int(vocab))
    run = PreparedRun(home, workload, workload.made_up(100))
    if which == "stoker":
        loop = StokerLoop(run)
        before = _start()
        loop.step()
        print(_most() - before)
        loop.end()
        return
    plain = PlainLoop(read_launch(run.launch()), workload.train["micro_batch"])
    windows = planned_batch(run, 0)
    for parameter in plain.model.parameters():  # torch makes the state of AdamW in its first step
        parameter.grad = torch.zeros_like(parameter)
    plain.optimizer.step()
    plain.optimizer.zero_grad(set_to_none=True)
    before = _start()
    plain.step(windows)
    print(_most() - before)


def _start() -> int:
    """Forgets the peak so far; returns the bytes held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _most() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
