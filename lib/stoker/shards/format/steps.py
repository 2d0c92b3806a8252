"""The steps of a build that drop rows, by name: a row counts under the first that drops it, in this order.

A step's name, version and parameter are in the build id. Strings, because the stage-shard loop imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Step(NamedTuple):
    """A step that a key of `dataset.filters` turns on; the key's value is its parameter."""

    version: int  # raised where the same parameter drops other rows than before
    make: str  # module:function that makes the mask of rows that pass out of the parameter; for workers
    # The columns that it reads, each "text" or "number", by the parameter; None: it reads the text.
    columns: Callable[[Any], Mapping[str, str]] | None = None


STEPS = {
    "min_chars": Step(1, "stoker.shards.build.filters:min_chars"),
    "max_chars": Step(1, "stoker.shards.build.filters:max_chars"),
    "languages": Step(1, "stoker.shards.build.filters:languages", lambda _: {"language": "text"}),
    "at_least": Step(
        1, "stoker.shards.build.filters:at_least", lambda least: dict.fromkeys(sorted(least), "number")
    ),
}
