"""Worker: removes files and directories that are no longer needed from hot, durably.

task: {"remove": [paths]}; messages: {"kind": "progress", "removed"}
result: {"failed": {path: reason}}, the paths that are there still
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import Report, run_worker
from stoker.store.files import remove_durably


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Removes each path, file or directory; a missing path or parent is no error."""
    failed: dict[str, str] = {}
    for number, path in enumerate(task["remove"], 1):
        try:
            with contextlib.suppress(FileNotFoundError):
                remove_durably(Path(path))
        except OSError as error:
            failed[path] = str(error)
        report("progress", removed=number)
    return {"failed": failed}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
