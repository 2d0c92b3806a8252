"""A worker for a test's own kind of job: tells who it is, and waits for its end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, run_worker


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    report("counted", pid=os.getpid())
    with Path(task["file"]).open("a") as file:
        file.write(json.dumps([os.getpid(), task["before"]]) + "\n")
    signal.pause()
    return {}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
