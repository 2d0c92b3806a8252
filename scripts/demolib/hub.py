"""A hub on this machine's loopback while the demo runs, so that its data comes as a real one's would.

It is the one that the tests use: a process of its own that serves a folder and can be told to misbehave. It
ends with the demo, however that ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.loopback_hub import LoopbackHub

REPO = "local/prose"
HOSTS = "127.0.0.1,127.0.0.2"  # the hub, and where it sends whoever wants a file
CUT_AFTER_BYTES = 100_000


def place(root: Path) -> Path:
    """The folder that the hub serves as the repository."""
    return root / "dataset" / REPO


def hub_over(root: Path) -> LoopbackHub:
    """The hub of that folder; start it with `with`."""
    return LoopbackHub(root)


def cut_one_transfer(hub: LoopbackHub, name: str) -> None:
    """Have the connection end in the middle of a file, once."""
    hub.fault("reset", path=name, after=CUT_AFTER_BYTES)


def use_no_proxy() -> None:
    """Loopback is reached directly, and with nobody's token, whatever this machine has set."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), HOSTS]))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        os.environ.pop(name, None)


def source_line(hub: LoopbackHub) -> str:
    """dataset.source of the pipeline file."""
    return f"  source: {{kind: hub, repo: {REPO}, endpoint: '{hub.endpoint}'}}"
