"""The audit as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from stoker.cli.main import exit_code

STOKER = str(Path(sys.executable).parent / "stoker")


def audit_of(file: Path, *, deep: bool = False) -> dict[str, Any]:
    """`stoker audit FILE --json`, which may say no: what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = exit_code(["audit", str(file), "--json", *(["--deep"] if deep else [])])
    assert code in (0, 1), printed.getvalue()
    return dict(json.loads(printed.getvalue()))
