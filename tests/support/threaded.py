"""What a fork server must not be made of: a module that leaves a thread running."""

from __future__ import annotations

import threading
from typing import Any


def preload(_task: dict[str, Any]) -> dict[str, Any]:
    """Leave one."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return {}
