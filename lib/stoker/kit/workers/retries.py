"""When each subject may be tried again after failures."""

from __future__ import annotations

import time

from stoker.kit.backoff import Backoff


class Retries:
    """Waits by subject: exponential, with jitter, forgotten on success."""

    def __init__(self, *, first_s: float = 0.5, last_s: float = 60.0) -> None:
        self._bounds = first_s, last_s
        self._failed: dict[str, tuple[int, Backoff]] = {}
        self.not_before: dict[str, float] = {}

    def failed(self, subject: str) -> float:
        """Count a failure; returns the seconds until the next try."""
        count, backoff = self._failed.get(subject) or (0, Backoff(*self._bounds))
        self._failed[subject] = count + 1, backoff
        wait_s = backoff.next()
        self.retry_in(subject, wait_s)
        return wait_s

    def retry_in(self, subject: str, seconds: float) -> None:
        """Have the subject wait so long after what was no failure of its own."""
        self.not_before[subject] = time.monotonic() + seconds

    def allows(self, subject: str) -> bool:
        """Whether the subject may be tried now."""
        return time.monotonic() >= self.not_before.get(subject, 0.0)

    def failures(self, subject: str) -> int:
        """How often in a row the subject failed."""
        return self._failed[subject][0] if subject in self._failed else 0

    def succeeded(self, subject: str) -> None:
        """Forget the subject's failures."""
        self._failed.pop(subject, None)
        self.not_before.pop(subject, None)
