"""A trainer of the user's own under a real supervisor: what it prints is read, and nothing it does harms."""

from __future__ import annotations

import json
from pathlib import Path

from support.foreign import make_foreign
from support.training import TrainPipeline

PRINTS = """
import os, sys
launches = int(open("launches").read()) + 1 if os.path.exists("launches") else 1
open("launches", "w").write(str(launches))
for n in range(0, 50, 10):
    print(f"iter {n}: loss {4.0 - n / 50 + launches}, time 5.00ms, mfu -100.00%")
    if n == 20:
        print(f"step {n}: train loss 3.1, val loss {3.2 + launches}")
    if n == 30 and launches == 1:
        sys.exit(1)
"""


def rows(run: TrainPipeline) -> list[dict[str, object]]:
    return [json.loads(line) for line in run.run.metrics.read_text().splitlines()]


def test_steps_and_losses_of_a_trainer_that_knows_nothing_of_stoker_are_in_the_log(tmp_path: Path) -> None:
    run = make_foreign(tmp_path, PRINTS)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert [one["step"] for one in run.events("trainer_exited")] == [30, 40]
    found = rows(run)
    assert all(row.pop("time") and row.pop("timeline") == 0 for row in found)
    # The second launch began again: its rows replace the first one's.
    assert found == [
        *({"step": n, "loss": 6.0 - n / 50} for n in (0, 10, 20)),
        {"step": 20, "val_loss": 5.2},
        *({"step": n, "loss": 6.0 - n / 50} for n in (30, 40)),
    ]
