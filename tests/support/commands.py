"""`stoker` commands in this process: a start of Python costs more than what most of them do."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

from stoker.cli.main import exit_code


@dataclass
class Ended:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def stoker(*arguments: object) -> Ended:
    """Run a command to its end."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code([str(one) for one in arguments])
    return Ended(code, out.getvalue(), err.getvalue())
