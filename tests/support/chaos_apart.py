"""A few kills of a scenario that mounts disks, from a test: in mounts that vanish with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.mounts import WHY_NOT, apart

TESTS = Path(__file__).parent.parent


def chaos_apart(scenario: str, kills: int, directory: Path, limit_s: float) -> dict[str, Any]:
    """The scenario's report; skips the test loudly where nobody may mount, fails it with what was said."""
    report, said = directory / "report.json", directory / "said"
    words = ["--scenario", scenario, "--kills", str(kills), "--seed", "1", "--json", str(report)]
    command = apart([sys.executable, "-m", "chaos", *words, "--dir", str(directory)])
    if command is None:
        pytest.skip(WHY_NOT)
    with said.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=stream,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
        )
    try:
        code = process.wait(limit_s)
    finally:
        if process.poll() is None:  # what it started takes its death for a signal to end
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
    assert code == 0, said.read_text()
    print(said.read_text())
    return dict(json.loads(report.read_text())["reports"][0])
