"""Measures the rate of work, and shows a daemon's progress in words."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stoker.config.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from stoker.kit.daemon import DaemonContext

LEAST_S = 2.0  # a shorter time gives no rate
STEP_S = 0.5  # between two kept totals

SEPARATOR = "  "
PLAIN_EVERY_S = 60.0  # between two lines of progress where there is no terminal
BAR_LEAST, BAR_MOST = 12, 42
DONE = ("verified", "unproven", "released", "given_up", "rotten")


class Rate:
    """The rate of a growing total over the last `over_s` seconds, or since the first note if later."""

    def __init__(self, over_s: float, least_s: float = LEAST_S) -> None:
        self._over_s, self._least_s = over_s, least_s
        self._seen: deque[tuple[float, float]] = deque()
        self._lost = 0.0  # the sum of all decreases, which must not count as slower work

    def note(self, total: float, now: float) -> None:
        """Takes in the total at a time (monotonic seconds); a smaller total becomes the new base."""
        total += self._lost
        if self._seen and total < self._seen[-1][1]:
            self._lost += self._seen[-1][1] - total
            total = self._seen[-1][1]
        if len(self._seen) > 1 and now < self._seen[-2][0] + STEP_S:
            self._seen.pop()
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._over_s:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 while there are too few notes."""
        if not self._seen:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended - began >= self._least_s else 0.0

    def left_s(self, left: float) -> float | None:
        """Returns the seconds that the rest will take; None while there is no rate."""
        rate = self.per_second
        return left / rate if rate > 0 else None


def progress_line(parts: Iterable[str], status: Mapping[str, Any], width: int) -> str:
    """Returns a line of at most `width` characters: the first part, the next that fit, a bar in the rest."""
    line = ""
    for part in parts:
        longer = f"{line}{SEPARATOR}{part}" if line else part
        if len(longer) <= width or not line:
            line = longer[:width]
    room = min(BAR_MOST, width - len(line) - len(SEPARATOR))
    done, of = status.get("bytes_done"), status.get("bytes_of")
    if done is None or not of or room < BAR_LEAST:
        return line
    return line + SEPARATOR + bar(done / of, room)


def bar(share: float, width: int) -> str:
    """Returns a progress bar of `width` characters."""
    full = round(min(1.0, max(0.0, share)) * (width - 2))
    return f"[{'#' * full}{'.' * (width - 2 - full)}]"


def download_parts(status: Mapping[str, Any]) -> Iterator[str]:
    """Yields the download watchdog's files, share, time left, rate and states, the most important first."""
    counts = status["files"]
    done = sum(counts.get(state, 0) for state in DONE)
    yield f"{done:,}/{sum(counts.values()):,} files" if status["looked"] else "looking at the source"
    if status.get("bytes_done") is not None and status.get("bytes_of"):
        yield f"{_percent(status)} of {format_bytes(status['bytes_of'])}"
    yield from _waits_or_left(status, status.get("trouble") or status.get("paused") or status.get("waits"))
    if status.get("rate_bytes_per_second"):
        yield f"{status['rate_bytes_per_second'] / 1e6:,.1f} MB/s"
    for state in ("fetching", "hashing", "unproven", "given_up", "rotten"):
        if counts.get(state):
            yield f"{counts[state]:,} {state.replace('_', ' ')}"


def shard_parts(status: Mapping[str, Any]) -> Iterator[str]:
    """Yields the stage-shard loop's files, share, time left, rates, activities, the most important first."""
    known = status["files_of"]
    yield f"{status['files_done']:,}/{known:,} files" if known else "looking for files"
    if status["bytes_of"]:
        yield _percent(status)
    yield from _waits_or_left(status, status.get("trouble"))
    yield from rates(status)
    doing = [f"{activity} {count}" for activity, count in status.get("workers", {}).items()]
    if doing:
        yield ", ".join(doing)
    if status["sources"].get("quarantined"):
        yield f"{status['sources']['quarantined']:,} quarantined"


def rates(status: Mapping[str, Any]) -> Iterator[str]:
    """Yields parquet bytes and tokens per second, while builders work."""
    if status.get("parquet_bytes_per_second"):
        yield f"{status['parquet_bytes_per_second'] / 1e6:,.1f} MB/s"
    if status.get("tokens_per_second"):
        yield f"{format_count(status['tokens_per_second'])} tokens/s"


def _percent(status: Mapping[str, Any]) -> str:
    return f"{100 * status['bytes_done'] / status['bytes_of']:.1f} %"


def _waits_or_left(status: Mapping[str, Any], waits: str | None) -> Iterator[str]:
    if waits:
        yield "waits: " + waits.split(";", maxsplit=1)[0]
    elif status.get("eta_s") is not None:
        yield f"{format_duration(status['eta_s'])} left"


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
