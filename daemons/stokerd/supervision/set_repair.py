"""Shard sets that are not what they were: the stage-shard loop, which owns them, is asked to see to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stoker.corpus.records.pin import DatasetPin
from stoker.kit.backoff import Backoff
from stoker.kit.events import Events
from stoker.shards.format.identity import set_key
from stoker.store.errors import DataError
from stoker.store.layout import STAGE_SHARD, StateLayout
from stoker.store.requests import file_request, read_outcome
from stoker.supervise.rollback.lost_sets import by_key, why_lost
from stoker.supervise.run.planner import Planner

FIRST_S, MOST_S = 5.0, 300.0  # between two proofs of a set that is not whole
HOPE_S = 5.0  # between two looks at what could become of cold sets: a hash a record
GONE_S = 600.0  # without any record of its source: a loop that starts again writes its records again


class SetLost(DataError):
    """A set that the plan names is gone, and with it what it could be made from again."""


@dataclass
class _Case:
    """One damaged set: the request that waits for an answer, and the pauses between its proofs."""

    request: str | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_S, MOST_S))


class Repairs:
    """Damaged sets by key; whole ones are forgotten."""

    def __init__(self, layout: StateLayout, events: Events, planner: Planner) -> None:
        self.layout, self.events = layout, events
        self.planner = planner
        self._cases: dict[str, _Case] = {}
        self._missing: dict[str, float] = {}
        self._hope_at = 0.0
        self.mended = 0  # sets so far

    @property
    def open(self) -> int:
        """How many sets are being waited for."""
        return len(self._cases)

    def report(self, key: str, path: str, reason: str) -> float:
        """Ask the loop to see to a set that is not whole; returns the seconds until another proof is due."""
        case = self._cases.setdefault(key, _Case())
        if case.request is None or read_outcome(self.layout, case.request) is not None:
            case.request = file_request(self.layout, STAGE_SHARD, "prove_set", {"key": key, "reason": reason})
            self.events.record(
                "shard_set_damaged",
                "error",
                path=path,
                key=key,
                reason=reason,
                request=case.request,
                message="the stage-shard loop is asked to restore it; what needs it waits",
            )
        return case.backoff.next()

    def whole(self, key: str) -> None:
        """A proof succeeded."""
        if self._cases.pop(key, None) is not None:
            self.mended += 1
            self.events.record("shard_set_restored", key=key)

    def check_hope(self, pin: DatasetPin, cold: Iterable[str], now: float) -> None:
        """SetLost when a set that is not on hot can never come back: neither a warm copy nor its source."""
        cold = list(cold)
        if not cold or now < self._hope_at:
            return
        self._hope_at = now + HOPE_S
        sources = by_key(self.planner.sources(), lambda sha256: set_key(sha256, pin.build_id))
        for key in cold:
            why = why_lost(key, sources)
            if why is None:
                self._missing.pop(key, None)
                continue
            if key not in sources and now - self._missing.setdefault(key, now) < GONE_S:
                continue
            raise SetLost(
                f"shard set {key[:16]}, which the plan names, is neither on hot nor on warm, and {why}. Put "
                "the source file back, then start again; or give its tokens up for good with `stoker "
                f"skip-set FILE {key[:16]}`"
            )
