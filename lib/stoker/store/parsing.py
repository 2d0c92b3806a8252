"""Parses JSON from disk: limits its size and depth, and checks the format version."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from stoker.store.errors import UnknownFormat

VERSION = 1  # `v` of every record, manifest, checkpoint.json and line of a log
MOST_BYTES = 64 << 20  # the largest valid file, a listing or a line of the plan, has a few MB
# The interpreter raises RecursionError at 1,000 frames, at any place in the code. The lower limit makes sure
# that a value that was parsed can also be walked, sent to a daemon and written again.
MOST_DEPTH = 64


def parse_json(data: bytes) -> Any:
    """Returns the value of UTF-8 JSON; raises ValueError for anything else, also too long or too deep."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    text = data.decode("utf-8", "surrogatepass")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # Most files are not worth the walk: without so many brackets nothing can be so deep.
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        _refuse_depth(value)
    return value


def require_version(body: Mapping[str, Any], where: Path | str) -> None:
    """Raises UnknownFormat unless `v` is VERSION; check the body's sum before."""
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
