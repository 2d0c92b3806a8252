"""Hot, warm and source folders that hang, die, vanish or turn read-only: mounted_disks.py, test by test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.fuse import WHY_NO_FUSE, fuse_is_here
from support.mounts import WHY_NOT, apart

THERE = Path(__file__).with_name("mounted_disks.py")
FOUND = re.findall(r"^(@pytest\.mark\.long\n)?def test_(\w+)\((.*?)\)", THERE.read_text(), re.MULTILINE)
TESTS = [
    pytest.param(f"test_{name}", wants, id=name, marks=[pytest.mark.long] if long else [])
    for long, name, wants in FOUND
]


@pytest.mark.root
@pytest.mark.parametrize(("name", "wants"), TESTS)
def test_with_mounts_of_its_own(name: str, wants: str, tmp_path: Path) -> None:
    if "mounts" in wants and not fuse_is_here():
        pytest.skip(WHY_NO_FUSE)
    # Each starts a pytest of its own: without what they have no use for.
    lean = [f"-pno:{plugin}" for plugin in ("cacheprovider", "hypothesispytest", "xdist", "anyio")]
    words = ["-m", "pytest", "-q", "-x", "-m", "", *lean, "--noconftest", f"--basetemp={tmp_path / 'apart'}"]
    command = apart([sys.executable, *words, f"{THERE}::{name}"])
    if command is None:
        pytest.skip(WHY_NOT)
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=THERE.parent.parent.parent,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
