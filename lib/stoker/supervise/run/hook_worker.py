"""The worker that runs the command of train.on_checkpoint, under a guard that ends all that it started.

Task: "command", "environ", "checkpoint" (which retention spares meanwhile), "limit_s" and, from TERM to
KILL, "grace_s"
-> {"code": as a shell has it, "is_late": it was ended after limit_s}
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

from stoker.checkpoints.retention import reading
from stoker.kit.guard import guard_command
from stoker.kit.process import readable
from stoker.kit.workers.child import Report, run_worker


def main(task: dict[str, Any], _: Report) -> dict[str, Any]:
    """Runs the command; a stop ends it, and returns no result."""
    with contextlib.ExitStack() as held, open(os.devnull, "wb") as null:  # noqa: PTH123 - a device
        held.enter_context(reading(Path(task["checkpoint"])))
        nowhere = null.fileno()  # for its reports; retention keeps off by `reading`, not by the guard's lock
        guard = subprocess.Popen(
            guard_command(task["command"], lock_fd=nowhere, report_fd=nowhere, stop_time_s=task["grace_s"]),
            env=task["environ"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # the daemon's log
            pass_fds=(nowhere,),
            start_new_session=True,
        )
        held.callback(guard.wait)
        held.callback(guard.terminate)
        pidfd = os.pidfd_open(guard.pid)
        is_late = not readable(pidfd, timeout_s=task["limit_s"])
        guard.terminate()
        return {"code": guard.wait(), "is_late": is_late}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
