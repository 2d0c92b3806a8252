"""Hot, warm and source folders that hang, die, vanish or turn read-only: mounted_disks.py, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fuse import WHY_NO_FUSE
from support.mounts import WHY_NOT, apart
from support.pipelines import Template

THERE = Path(__file__).with_name("mounted_disks.py")


@pytest.mark.root
@pytest.mark.parametrize("chosen", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_daemons_wait_for_disks_that_are_away_and_blame_no_file(
    chosen: str, drained: Template, tmp_path: Path
) -> None:
    # It starts a pytest of its own: without what it has no use for.
    lean = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "xdist", "anyio")]
    words = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        chosen,
        *lean,
        "--noconftest",
        f"--basetemp={tmp_path / 'apart'}",
    ]
    command = apart([sys.executable, *words, str(THERE)])
    if command is None:
        pytest.skip(WHY_NOT)
    environ = {**os.environ, "STOKER_TEST_TOKENIZER": drained.tokenizer["file"]}
    ended = subprocess.run(
        command, env=environ, capture_output=True, text=True, cwd=THERE.parents[2], check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    if WHY_NO_FUSE in ended.stdout:
        pytest.skip(f"{WHY_NO_FUSE}: the others passed")
