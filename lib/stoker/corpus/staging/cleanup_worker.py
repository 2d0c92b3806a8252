"""Worker: removes files and directories that are no longer needed from hot, durably.

task: {"remove": [paths]}; messages: {"kind": "progress", "removed"}
result: {"removed": [paths that were there]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, run_worker
from stoker.store.files import remove_durably


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Removes each path, file or directory; a missing path is no error."""
    removed = []
    for name in task["remove"]:
        path = Path(name)
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        remove_durably(path)
        removed.append(name)
        report("progress", removed=len(removed))
    return {"removed": removed}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
