"""A `stoker` command as a process of its own, with all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from stoker.kit.process import ProcessId, processes_with_environment, signal_process
from support.processes import kill_tree
from support.waiting import LONG_S

MARK = "STOKER_TEST_COMMAND"
STOKER = str(Path(sys.executable).parent / "stoker")


class StokerCommand:
    """Runs from here on; what it prints is kept in a file, behind what stands there."""

    def __init__(self, printed: Path, *words: str) -> None:
        self.printed, self.mark = printed, str(printed)
        with printed.open("ab") as stream:
            self.process = subprocess.Popen(
                [STOKER, *words],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, MARK: self.mark},
            )

    def said(self) -> str:
        return self.printed.read_text()

    def everyone(self) -> list[ProcessId]:
        """Every live process that was started below, whatever became of its parent."""
        return processes_with_environment(MARK, self.mark)

    def end(self) -> None:
        """Leave nothing behind, whatever the test found."""
        if self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait(LONG_S)
        for process in self.everyone():
            signal_process(process, signal.SIGKILL)
