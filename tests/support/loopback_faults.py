"""What a loopback hub can do wrong, and when: each fault names where, for which path, and how often."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

Where = Literal["api", "resolve", "cdn", "url", "body"]
BODY_KINDS = ("stall", "trickle", "reset", "short", "wrong", "etag")


@dataclass
class Fault:
    """One thing to go wrong. `path` is a part of the request path, "" any; `on` "body" is cdn or url.

    kinds: status (`code`, `retry_after`: the header, or "date <seconds>" for a date), slow_head (`seconds`),
    moved (another commit comes before this one), lost (a commit's answer, after `seconds`),
    loop, elsewhere (redirects to another host), expired (an address that has expired already), length
    (announces `size` bytes in all), no_range, encoded;
    and of bodies, at byte `after` of the file: stall and trickle (one byte a `seconds`), reset, short, wrong
    (that byte is another), etag (resets, and the content's tag is another from then on).
    """

    kind: str
    on: Where = "body"
    path: str = ""
    times: int = 1  # -1: always
    skip: int = 0  # so many matching requests go well before
    after: int = 0
    code: int = 500
    retry_after: str | None = None
    seconds: float = 3600.0
    size: int = 0

    @property
    def named(self) -> str:
        """Its kind, for people."""
        if self.kind != "status":
            return self.kind if self.on != "api" else f"{self.kind} of the listing"
        asked = " Retry-After" if self.retry_after else ""
        return f"{self.code}{asked}{' of the listing' if self.on == 'api' else ''}"

    def to_fields(self) -> dict[str, Any]:
        """For the control channel."""
        return asdict(self)


class FaultBook:
    """The faults still to come. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.struck: Counter[str] = Counter()  # how often each kind did

    def add(self, fault: Fault) -> None:
        """From now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """All goes well from now on."""
        with self._lock:
            self._faults.clear()

    def take(self, place: str, path: str, *kinds: str) -> Fault | None:
        """The first fault of these kinds that strikes this request, counted as struck."""
        with self._lock:
            for fault in self._faults:
                on = fault.on == place or (fault.on == "body" and place in ("cdn", "url"))
                if not on or fault.path not in path or fault.kind not in kinds or not fault.times:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                self.struck[fault.named] += 1
                return fault
        return None
