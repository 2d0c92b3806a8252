"""How far a daemon has come, for whoever started it by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stoker.kit.daemon import DaemonContext

PLAIN_EVERY_S = 60.0  # between two lines of progress where there is no terminal


class ProgressTeller:
    """Shows a status on the terminal's last line; where there is none, with --once, as a line now and then.

    `line` makes one of at most so many columns of a status, `parts` the words of it.
    """

    def __init__(
        self,
        context: DaemonContext,
        line: Callable[[Mapping[str, Any], int], str],
        parts: Callable[[Mapping[str, Any]], Iterable[str]],
    ) -> None:
        self._log, self._once = context.log, context.once
        self._line, self._parts = line, parts
        self._plain_due = time.monotonic() + PLAIN_EVERY_S

    def tell(self, status: Mapping[str, Any]) -> None:
        """Show how it stands now."""
        log, now = self._log, time.monotonic()
        log.footer.show(lambda width: self._line(status, width))
        if self._once and not log.footer.shown and now >= self._plain_due:
            self._plain_due = now + PLAIN_EVERY_S
            log.info("progress", message=", ".join(self._parts(status)))
