"""What other processes ask of the loop, and what quarantine holds."""

from __future__ import annotations

import time

from stoker.corpus.quarantine.directory import DROP, RELEASE, QuarantineEntry, read_quarantine
from stoker.kit.daemon import DaemonContext
from stoker.store.layout import STAGE_SHARD, StateLayout
from stoker.store.requests import Request
from stokerd.common.loop import RequestBox

PROVE_SET = "prove_set"
VERBS = (PROVE_SET, RELEASE, DROP)
READ_EVERY_S, YOUNG_S = 60.0, 2.0


class Inbox:
    """`requests` are those without an answer."""

    def __init__(self, context: DaemonContext) -> None:
        self._box = RequestBox(context.layout, STAGE_SHARD, context.events)
        self.requests: list[Request] = []

    def read(self) -> None:
        """Reads the requests; refuses unknown ones."""
        self.requests = []
        self._box.answer(dict.fromkeys(VERBS, self.requests.append))

    def asked(self, *verbs: str) -> list[Request]:
        """Returns the unanswered requests of these verbs."""
        return [request for request in self.requests if request.verb in verbs]

    def answered(self, request: Request) -> None:
        """Forgets a request after its answer."""
        self.requests = [one for one in self.requests if one.id != request.id]


class QuarantineState:
    """`kept` is everything in quarantine, newest first."""

    def __init__(self, layout: StateLayout) -> None:
        self._directory = layout.quarantine
        self._read_due = self._stamp = 0.0
        self.kept: tuple[QuarantineEntry, ...] = ()

    def read_soon(self) -> None:
        self._read_due = 0.0

    def read(self) -> None:
        """Reads the directory if its time stamp changed, else every READ_EVERY_S for inner changes.

        A young time stamp may hide an entry that was made within the resolution of the clock.
        """
        now, stamp = time.monotonic(), 0.0
        if self._directory.exists():  # created with the first entry
            stamp = self._directory.stat().st_mtime
        if stamp != self._stamp or abs(time.time() - stamp) < YOUNG_S or now >= self._read_due:
            self._stamp, self._read_due = stamp, now + READ_EVERY_S
            self.kept = read_quarantine(self._directory)

    def named(self, request: Request) -> QuarantineEntry | None:
        """Returns the quarantine entry that a request names."""
        return next((kept for kept in self.kept if kept.name == request.args.get("name")), None)
