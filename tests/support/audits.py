"""The audit as a user runs it."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
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


def run_measured(
    *arguments: object, limits: dict[int, int] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which says last its peak of resident bytes."""
    code = (
        "import resource, sys\n"
        "from stoker.cli.main import exit_code\n"
        f"for what, most in {limits or {}}.items(): resource.setrlimit(what, (most, most))\n"
        "code = exit_code(sys.argv[1:])\n"
        "from stoker.kit.process import own_peak_rss\n"
        "print(own_peak_rss())\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
