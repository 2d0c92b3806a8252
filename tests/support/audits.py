"""The audit as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STOKER = str(Path(sys.executable).parent / "stoker")


def audit_of(file: Path, *, deep: bool = False) -> dict[str, Any]:
    """`stoker audit FILE --json`, which may say no: what it printed."""
    ended = subprocess.run(
        [STOKER, "audit", str(file), "--json", *(["--deep"] if deep else [])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stderr
    return dict(json.loads(ended.stdout))
