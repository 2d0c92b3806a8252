"""The stage-shard loop's progress in words, from its status snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.config.units import format_count, format_duration

SEPARATOR = "  "


def progress_line(status: Mapping[str, Any], width: int) -> str:
    """One line of at most `width` characters: what fits, the weightiest first."""
    line = ""
    for part in progress_parts(status):
        longer = f"{line}{SEPARATOR}{part}" if line else part
        if len(longer) <= width:
            line = longer
    return line


def progress_parts(status: Mapping[str, Any]) -> Iterator[str]:
    """What there is to tell: files, share, time left, rates, activities, what was set aside."""
    known = status["files_of"]
    yield f"{status['files_done']:,}/{known:,} files" if known else "looking for verified files"
    if status["bytes_of"]:
        yield f"{100 * status['bytes_done'] / status['bytes_of']:.1f} %"
    if status.get("trouble"):
        yield "waits: " + str(status["trouble"]).split(";", maxsplit=1)[0]
    elif status.get("eta_s") is not None:
        yield f"{format_duration(status['eta_s'])} left"
    yield from rates(status)
    doing = [f"{activity} {count}" for activity, count in status.get("workers", {}).items()]
    if doing:
        yield ", ".join(doing)
    if status["sources"].get("quarantined"):
        yield f"{status['sources']['quarantined']:,} quarantined"


def rates(status: Mapping[str, Any]) -> Iterator[str]:
    """Parquet and tokens a second, where something is being built."""
    if status.get("parquet_bytes_per_second"):
        yield f"{status['parquet_bytes_per_second'] / 1e6:,.1f} MB/s"
    if status.get("tokens_per_second"):
        yield f"{format_count(status['tokens_per_second'])} tokens/s"
