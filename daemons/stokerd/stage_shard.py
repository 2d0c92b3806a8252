"""The stage-shard loop's command; the loop itself is in stage_shard_loop.

While Python loads the loop, which takes it a third of a second, a fork server already loads what the first
workers need. Nothing is known yet but the words of the command line, so the state directory is guessed from
the file; the loop gives up the server where that was wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stoker.kit.fork_server import ForkServer
from stoker.kit.worker import WorkerNotStarted
from stoker.kit.worker_launch import CREW_VARIABLE
from stokerd.loads import LOAD_S, PRELOAD, crew_name

_STATE = re.compile(r"""^state:[ \t]+["']?([^"'#\n]*[^"'#\s])["']?[ \t]*(?:#.*)?$""", re.MULTILINE)
_MOST_BYTES = 1 << 16  # of a file that is looked into


def main() -> int:
    """The command `stoker-stage-shard FILE [--once] [--files-list LIST]`."""
    server = early_server(sys.argv[1:])
    from stokerd.stage_shard_loop import command  # noqa: PLC0415 - meanwhile

    return command(sys.argv[1:], server)


def early_server(words: Sequence[str]) -> ForkServer | None:
    """A fork server for the pipeline that the command line seems to name, if it names one."""
    file = next((word for word in words if word.endswith((".yaml", ".yml"))), None)
    if file is None:
        return None
    with suppress(OSError, ValueError, WorkerNotStarted):  # the loop says what is wrong
        with Path(file).open(encoding="utf-8") as stream:
            found = _STATE.search(stream.read(_MOST_BYTES))
        if found is not None:
            environ = {CREW_VARIABLE: crew_name(found[1])}
            task = {"module": PRELOAD}
            return ForkServer.launch(task, name="load", environ=environ, quiet_deadline_s=LOAD_S)
    return None


if __name__ == "__main__":
    sys.exit(main())
