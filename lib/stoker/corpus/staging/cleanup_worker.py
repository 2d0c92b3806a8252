"""Worker: removes files and directories that are no longer needed from hot, durably.

task: {"remove": [paths]}; messages: {"kind": "progress", "removed"}
result: {}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, run_worker
from stoker.store.files import remove_durably


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Removes each path, file or directory; a missing path is no error."""
    for number, path in enumerate(task["remove"], 1):
        remove_durably(Path(path))
        report("progress", removed=number)
    return {}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
