"""A corpus three times the hot disk, two epochs, through a few of the kills of `scripts/chaos`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.mounts import WHY_NOT, apart

TESTS = Path(__file__).parent.parent
KILLS, LIMIT_S = 5, 600


@pytest.mark.root
@pytest.mark.timeout(LIMIT_S + 60)
def test_two_epochs_go_through_a_third_of_the_room_and_five_kills(tmp_path: Path) -> None:
    """The checks are those of chaos.scenarios.small_disk, with a 16 MB tmpfs."""
    report, said = tmp_path / "report.json", tmp_path / "said"
    words = ["--scenario", "tiny-disk", "--kills", str(KILLS), "--seed", "1", "--json", str(report)]
    command = apart([sys.executable, "-m", "chaos", *words, "--dir", str(tmp_path)])
    if command is None:
        pytest.skip(WHY_NOT)
    with said.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=stream,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            start_new_session=True,
        )
    try:
        code = process.wait(LIMIT_S)
    finally:
        if process.poll() is None:  # what it started takes its death for a signal to end
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
    assert code == 0, said.read_text()
    found = json.loads(report.read_text())["reports"][0]
    print(said.read_text())
    assert found["rounds"] == 1, "the run was over before the last kill"
    assert found["kills"] + found["skipped"] == KILLS
