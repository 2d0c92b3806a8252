"""Whether directories that must be apart lie in one another: those that Stoker writes, and the source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.config.schema import Pipeline

SOURCE = "dataset.source.path"


def places(pipeline: Pipeline) -> dict[str, Path]:
    """The directories of a pipeline, by key; the source last."""
    source = pipeline.dataset.source
    found = {"state": pipeline.state, "hot": pipeline.hot, "warm": pipeline.warm}
    found |= {SOURCE: source.path if source.kind == "folder" else None}
    return {key: path for key, path in found.items() if path is not None}


def overlaps(known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """The key and what is wrong with it, for each place in another; all but the source may lie in state."""
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
    """The overlaps of where the pipeline's paths really lead; asks the disks, so no daemon calls it."""
    real = {key: Path(os.path.realpath(path)) for key, path in places(pipeline).items()}
    return [(tuple(key.split(".")), text) for key, text in overlaps(real)] if SOURCE in real else []
