"""The download watchdog's progress in words, from its status snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.config.units import format_bytes, format_duration

SEPARATOR = "  "
BAR_LEAST, BAR_MOST = 12, 42
DONE = ("verified", "unproven", "released", "given_up", "rotten")


def progress_line(status: Mapping[str, Any], width: int) -> str:
    """One line of at most `width` characters: what fits, the weightiest first, and a bar in what is left."""
    line = ""
    for part in progress_parts(status):
        longer = f"{line}{SEPARATOR}{part}" if line else part
        if len(longer) <= width:
            line = longer
    room = min(BAR_MOST, width - len(line) - len(SEPARATOR))
    here, whole = status.get("bytes_done"), status.get("bytes_of")
    if here is None or not whole or room < BAR_LEAST:
        return line
    return line + SEPARATOR + bar(here / whole, room)


def bar(share: float, width: int) -> str:
    """A bar of that many characters."""
    full = round(min(1.0, max(0.0, share)) * (width - 2))
    return f"[{'#' * full}{'.' * (width - 2 - full)}]"


def progress_parts(status: Mapping[str, Any]) -> Iterator[str]:
    """What there is to tell: files, share, time left, rate, what is under way, what did not come."""
    counts = status["files"]
    done = sum(counts.get(state, 0) for state in DONE)
    whole_files = sum(counts.values())
    yield f"{done:,}/{whole_files:,} files" if status["looked"] else "looking at the source"
    here, whole = status.get("bytes_done"), status.get("bytes_of")
    if here is not None and whole:
        yield f"{100 * here / whole:.1f} % of {format_bytes(whole)}"
    if waits := status.get("trouble") or status.get("paused") or status.get("waits"):
        yield "waits: " + str(waits).split(";", maxsplit=1)[0]
    elif status.get("eta_s") is not None:
        yield f"{format_duration(status['eta_s'])} left"
    if status.get("rate_bytes_per_second"):
        yield f"{status['rate_bytes_per_second'] / 1e6:,.1f} MB/s"
    for state in ("fetching", "hashing", "unproven", "given_up", "rotten"):
        if counts.get(state):
            yield f"{counts[state]:,} {state.replace('_', ' ')}"
