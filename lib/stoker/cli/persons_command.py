"""Runs a command that a person named to be told by."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from stoker.kit.exec import child_environment, launch_command


def run_command(words: Sequence[str], text: str, limit_s: float, stdout: int | None = None) -> str:
    """Runs a person's command with a text on its standard input and in place of {message}.

    Returns why it failed, "" where it did not.
    """
    # As bytes: the text is UTF-8, whatever the locale's encoding is.
    message, launched = text.encode(), launch_command([*words])
    command = [word.encode(errors="surrogateescape").replace(b"{message}", message) for word in launched]
    settings: Any = {"env": child_environment(), "stdout": stdout, "timeout": limit_s}
    try:
        ended = subprocess.run(command, input=message + b"\n", check=False, **settings)
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:.0f} s"
    except OSError as problem:
        return f"it was not started: {problem.strerror}"
    return f"it ended with exit code {ended.returncode}" if ended.returncode else ""
