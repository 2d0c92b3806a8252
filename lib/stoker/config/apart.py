"""Finds overlaps of directories that must be apart: those that Stoker writes, and the source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.config.schema import Pipeline

SOURCE = "dataset.source.path"


def places(pipeline: Pipeline) -> dict[str, Path]:
    """Returns the directories of a pipeline, by key; the source last."""
    source = pipeline.dataset.source
    found = {"state": pipeline.state, "hot": pipeline.hot, "warm": pipeline.warm}
    found |= {SOURCE: source.path if source.kind == "folder" else None}
    return {key: path for key, path in found.items() if path is not None}


def overlaps(known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yields key and fault of each directory inside another; all but the source may be inside state."""
    for key, path in known.items():
        for other, outer in known.items():
            if path == outer and list(known).index(key) > list(known).index(other):
                yield key, f"is the same directory as {other}; give each its own"
            elif outer in path.parents and (other != "state" or key == SOURCE):
                why = {
                    key: ", which Stoker writes and cleans; move the source elsewhere",
                    other: ": Stoker would read what it wrote as new files; name a directory outside it",
                }.get(SOURCE, "; give each a directory of its own")
                yield key, f"lies inside {other} ({outer}){why}"


def nested_through_links(pipeline: Pipeline) -> list[tuple[tuple[str, ...], str]]:
    """Returns the overlaps of the resolved paths; reads links on the disks, so no daemon calls it."""
    real = {key: Path(os.path.realpath(path)) for key, path in places(pipeline).items()}
    return [(tuple(key.split(".")), text) for key, text in overlaps(real)] if SOURCE in real else []
