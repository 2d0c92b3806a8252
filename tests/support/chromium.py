"""A headless Chromium that opens a page and tells what became of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

BINARY = "chromium-headless-shell"
PATIENCE_MS = 10_000  # of the page's own clock, which stands while an answer is awaited

_lacks = shutil.which(BINARY) is None
if _lacks:
    warnings.warn(f"NEITHER CONSOLE PAGE NOR REPORT IS TESTED: {BINARY} missing", stacklevel=1)
needs_chromium = pytest.mark.skipif(_lacks, reason=f"no {BINARY} here")


@dataclass(frozen=True)
class Opened:
    """A page after its scripts ran: its document, what its console says, and the hosts that were asked."""

    document: str
    said: list[str]
    hosts: set[str]


def opened(url: str, home: Path, *more: str) -> Opened:
    """Open a page; `home` takes Chromium's files, `more` are further flags."""
    log = home / "net.json"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += [f"--user-data-dir={home / 'profile'}", f"--log-net-log={log}", "--enable-logging=stderr"]
    flags += [f"--virtual-time-budget={PATIENCE_MS}", "--window-size=1280,900", "--dump-dom", *more]
    done = subprocess.run([BINARY, *flags, url], capture_output=True, text=True, timeout=60, check=True)
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    asked = re.findall(r'"url":"((?:https?|wss?):[^"]+)"', log.read_text())
    return Opened(done.stdout, said, {urlsplit(json.loads(f'"{url}"')).netloc for url in asked})
