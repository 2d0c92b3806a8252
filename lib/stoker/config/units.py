"""Parses, formats and writes sizes, durations and counts with units."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z]*)")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

SIZE_UNITS = {"": 1, "B": 1, "kB": 1000}
SIZE_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
SIZE_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}
COUNT_UNITS = {"": 1, "K": 10**3, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
DURATION_UNITS: dict[str, int | Fraction]
DURATION_UNITS = {"ms": Fraction(1, 1000), "s": 1, "m": 60, "h": 3600, "d": 86400}


def _exactly(text: str, units: dict[str, int], what: str, hint: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        fault = "is below zero" if re.fullmatch(r"-\d.*", text) else f"is not {what}"
        raise ValueError(f"{text!r} {fault}; {hint}")
    digits, unit = match.groups()
    if re.match(r"0\d", digits):
        raise ValueError(f"{text!r} begins with 0, which YAML takes for an octal number; drop the 0")
    if unit not in units:
        raise ValueError(f"{unit!r} is not a unit here; {hint}")
    value = Fraction(digits) * units[unit]
    if value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number; {hint}")
    if value >= 2**63:
        raise ValueError(f"{text!r} is larger than any here; {hint}")
    return int(value)


def parse_size(text: str) -> int:
    """Parses bytes from `64MiB`, `200MB` or plain digits; raises ValueError with advice."""
    return _exactly(text, SIZE_UNITS, "a size", "write a number of bytes, or one like 200MB or 64MiB")


def parse_count(text: str) -> int:
    """Parses a whole number from `20M`, `1B`, `1e6` or plain digits; raises ValueError with advice."""
    return _exactly(text, COUNT_UNITS, "a whole number", "write one like 5000, 20M or 1B")


def parse_duration(text: str) -> float:
    """Parses seconds from `30s`, `90m`, `2d`, `1h30m` or `500ms`; raises ValueError with advice."""
    parts = _DURATION_PART.findall(text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError(f"{text!r} is not a duration; write one with its unit, like 30s, 90m, 12h30m or 2d")
    return float(sum(Fraction(number) * DURATION_UNITS[unit] for number, unit in parts))


def format_bytes(size: float) -> str:
    """Returns a rounded size for display: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: float) -> str:
    """Returns a rounded count for display: `12,345` below a hundred thousand, then `1.2 M`, `3.4 B`."""
    if abs(count) < 100_000:
        return f"{count:,.0f}"
    for unit in ("K", "M", "B"):
        count /= 1000
        if abs(count) < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} T"


def format_duration(seconds: float) -> str:
    """Returns a rounded duration for display in its two largest units: `2 d 4 h`, `3 min 5 s`."""
    left = round(max(seconds, 0.0))
    if left < 60:
        return f"{left} s"
    sizes = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    largest = next(index for index, (size, _) in enumerate(sizes) if left >= size)
    (size, unit), (next_size, next_unit) = sizes[largest : largest + 2]
    rest = left % size // next_size
    return f"{left // size} {unit}" + (f" {rest} {next_unit}" if rest else "")


def write_size(size: int) -> str:
    """Returns the exact size in the notation of the pipeline file: `64MiB`, `200MB`, or digits."""
    return _largest_exact(size, SIZE_UNITS)


def write_count(count: int) -> str:
    """Returns the exact count in the notation of the pipeline file: `20M`, or digits."""
    return _largest_exact(count, COUNT_UNITS)


def _largest_exact(value: int, units: dict[str, int]) -> str:
    fitting = [(factor, unit) for unit, factor in units.items() if value and value % factor == 0]
    # Among equal factors (k and K), max takes the first in the table.
    factor, unit = max(fitting, key=lambda each: each[0], default=(1, ""))
    return f"{value // factor}{unit}" if factor > 1 else str(value)


def write_duration(seconds: float) -> str:
    """Returns a duration in the notation of the pipeline file: `90m`, `2s`, `500ms`."""
    for unit in ("d", "h", "m", "s"):
        size = float(DURATION_UNITS[unit])
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:g}ms" if seconds else "0s"
