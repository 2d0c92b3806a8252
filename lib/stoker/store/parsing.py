"""JSON as a disk may hold it: bounded in bytes and in depth, and of a format version that is known here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from stoker.store.errors import UnknownFormat

VERSION = 1  # `v` of every record, manifest, checkpoint.json and line of a log
MOST_BYTES = 64 << 20  # the largest honest file, a listing or a line of the plan, has a few MB
# The interpreter gives up at 1,000 frames, wherever it happens to be by then. What is deeper than this is
# refused first, so that everything that is read can also be walked, sent to a daemon and written again.
MOST_DEPTH = 64


def parse_json(data: bytes) -> Any:
    """The value that UTF-8 JSON holds; ValueError for anything else, too long or too deep included."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    text = data.decode("utf-8", "surrogatepass").strip()
    try:
        value, end = _SCAN(text, 0)
    except StopIteration as error:
        raise ValueError(f"no value at character {error.value}") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if end != len(text):
        raise ValueError(f"something follows at character {end}")
    # Most files are not worth the walk: without so many brackets nothing can be so deep.
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        _refuse_depth(value)
    return value


def require_version(body: Mapping[str, Any], where: Path | str) -> None:
    """Raise UnknownFormat unless `v` is the version that is read here, of a body whose sum is right."""
    if body["v"] != VERSION:
        raise UnknownFormat(
            f"{where} is of format version {body['v']!r}, this Stoker reads version {VERSION}: it is left as "
            "it is; start the Stoker that wrote it, or a newer one"
        )


def _refuse_depth(value: Any) -> None:
    level = [value] if type(value) in _NESTS else []
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _NESTS
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _finite(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(f"{word} is beyond every number")
    return number


_NESTS = frozenset((dict, list))
_TOO_DEEP = f"nested deeper than {MOST_DEPTH} levels"
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
# What decode() adds to it takes a third of a small record's time.
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]
