"""Shows the progress of a daemon that an operator started in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stoker.kit.daemon import DaemonContext
from stoker.observe.progress import progress_line

PLAIN_EVERY_S = 60.0  # between two lines of progress where there is no terminal


class ProgressTeller:
    """Shows a status on the terminal's last line; without a terminal, with --once, logs a line per minute."""

    def __init__(self, context: DaemonContext, parts: Callable[[Mapping[str, Any]], Iterable[str]]) -> None:
        self._context, self._log, self._parts = context, context.log, parts
        self._plain_due = time.monotonic() + PLAIN_EVERY_S

    def tell(self, status: dict[str, Any], text: str) -> None:
        """Shows the status everywhere: here, in the metrics, and to `stoker status`; `text` is its line."""
        log, now = self._log, time.monotonic()
        log.footer.show(lambda width: progress_line(self._parts(status), status, width))
        if self._context.once and not log.footer.shown and now >= self._plain_due:
            self._plain_due = now + PLAIN_EVERY_S
            log.info("progress", message=", ".join(self._parts(status)))
        self._context.beat(status, text)
