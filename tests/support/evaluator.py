"""A stand-in for stoker.evaluation.worker: it answers by the same contract what a test asks for.

`<suite>.json` beside the suite's file has by step how its evaluation ends; `<suite>.tasks` gets each task.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import NoMemory

METRIC = "heldout/bits_per_byte"
BETTER = "better"


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    report("progress", doing="evaluate", done=0, of=0)
    suite, checkpoint = Path(task["suite"]), Path(task["checkpoint"])
    with suite.with_suffix(".tasks").open("a") as file:
        file.write(json.dumps(task) + "\n")
    how = json.loads(suite.with_suffix(".json").read_text()).get(checkpoint.name[-2:], BETTER)
    match how:
        case "memory":
            raise NoMemory(f"memory ran out at a batch of {task['batch']}")
        case "killed" if task["batch"] == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        case "late":
            signal.pause()
        case "refused":
            return {"refused": "its data changed"}
    metric = {"value": 1.0, "n": 60, "stderr": 0.01, "higher_is_better": False}
    verdict = {"verdict": how, "difference": 0.1, "low": 0.05, "high": 0.15, "n": 60}
    baseline, is_gate = task["baseline"], suite.stem == "smoke"
    compared = baseline is not None and not is_gate
    line = {
        "checkpoint_digest": task["digest"],
        "suite": suite.stem,
        "suite_digest": "d" * 64,
        "metrics": {} if is_gate else {METRIC: metric},
        "gate": {"passed": 5 - (how == "fails"), "of": 5, "failed": []} if is_gate else None,
        "against": {"digest": baseline["digest"], "verdicts": {METRIC: verdict}} if compared else None,
        "samples": "",
        "samples_missing": 0,
        "invalid": None,
        "seconds": 0.5,
    }
    return {"evaluated": [line]}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
