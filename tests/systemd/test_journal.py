"""What a real journal makes of events and of a trainer's lines: journalctl -x is the runbook."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from stoker.kit.event_types import register
from support.skipping import unless_missing
from systemd.box import Box, missing

REPO = Path(__file__).resolve().parents[2]
CATALOG = "/usr/local/lib/systemd/catalog/stoker.catalog"
# A daemon that records an event and has a guard run a trainer, which prints as torchrun's ranks and tqdm do.
DAEMON = """
import os, subprocess, sys
from pathlib import Path
from stoker.kit.events import Log
from stoker.kit.guard import guard_command
from stoker.kit.lock import Lock
log = Log("stage_shard", "thread", "/srv/thread.yaml")
log.info("file_verified", path="a.parquet", size=1)
log.error("daemon_failed", "a reason")
log.error("disk_full", place="hot", path="/hot/a.parquet")
log.error("worker_stuck", activity="build", path="a", pid=4711, reason="no end")
lock = Lock.acquire(Path("/tmp/lock"), purpose="supervisor")
reading, writing = os.pipe()
trainer = r'''printf '[default1]:step 1\\n\\r 1%%\\r 2%%\\r 3%%\\ndone\\n'; echo 'to stderr' >&2'''
command = guard_command(["sh", "-c", trainer], lock_fd=lock.fileno(), report_fd=writing,
                        stop_time_s=5, output="/tmp/output.txt")
environ = {**os.environ, "STOKER_LAUNCH": "l-7"}
sys.exit(subprocess.run(command, env=environ, pass_fds=(lock.fileno(), writing)).returncode)
"""

pytestmark = [pytest.mark.systemd, unless_missing("a real journal", missing())]


def test_the_journal_explains_events_and_knows_the_launch_of_a_trainers_lines() -> None:
    with Box("journal", [(REPO, str(REPO))]) as box:
        for path in (Path(sys.executable).resolve(), Path(sysconfig.get_paths()["stdlib"]) / "os.py", REPO):
            for folder in path.parents:
                box.run("chmod", "a+x", str(folder))
        box.write(CATALOG, (REPO / "deploy" / "systemd" / "stoker.catalog").read_text())
        box.run("journalctl", "--update-catalog")
        box.run("systemd-run", "--wait", "--unit=here", sys.executable, "-c", DAEMON)

        told = box.journal("here", "-x", "-o", "short")
        assert re.search(r"a\.parquet hashed, 1 B\n\w.*: the daemon ended with an error: a reason\n", told), (
            told
        )
        assert "Do: Free space; it is checked every few seconds." in told
        assert "A write met a full disk; its work waits (thread: disk_full)" in told
        assert "cat /proc/4711/stack" in told, "a field of the event is in the text"
        assert "`stoker config check /srv/thread.yaml`" in told, "the file wherever it is"

        # Not by the unit, which journald cannot tell of a guard that has ended before its lines are read.
        lines = box.run("journalctl", "--no-pager", "-o", "json", "-t", "stoker-trainer").stdout
        entries = [json.loads(line) for line in lines.splitlines()]
        assert [(entry["MESSAGE"], entry.get("STOKER_RANK")) for entry in entries] == [
            ("[default1]:step 1", "1"), (" 1%", None), ("done", None), ("to stderr", None),
        ]  # fmt: skip
        assert {entry["STOKER_LAUNCH"] for entry in entries} == {"l-7"}
        assert "3%" in box.path("/tmp/output.txt").read_text(), "what is left out is in the file"

        known = box.run("journalctl", "--list-catalog").stdout
        assert sum("(@STOKER_PIPELINE@: " in line for line in known.splitlines()) == sum(
            bool(of.meaning) for of in register().values()
        )
