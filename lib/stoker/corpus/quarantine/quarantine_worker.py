"""Worker: move a bad thing from hot into the state's quarantine.

task: {"directory", "kind", "name", "thing": path, "reason": {...}, "budget_bytes"}
result: {"folder"}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.corpus.quarantine.move import quarantine
from stoker.corpus.staging.disk_contents import insist_on
from stoker.kit.workers.child import Report, run_worker


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Quarantine the thing with its reason."""
    insist_on(task)
    folder = quarantine(
        Path(task["directory"]),
        task["kind"],
        task["name"],
        Path(task["thing"]),
        task["reason"],
        budget_bytes=task["budget_bytes"],
        progress=lambda done: report("progress", bytes=done),
    )
    return {"folder": str(folder)}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
