"""Whether the source folder and a directory that Stoker writes lie in one another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.config.schema import Pipeline

_SOURCE = ("dataset", "source", "path")


def nested(source: Path, places: Mapping[str, Path]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The key and what is wrong with it, for each of the places (by key) that the source lies in or holds."""
    for key, path in places.items():
        if source == path or path in source.parents:
            yield (
                _SOURCE,
                f"lies inside {key} ({path}), which Stoker writes and cleans; move the source elsewhere",
            )
        elif source in path.parents:
            yield (
                (key,),
                f"lies inside dataset.source.path ({source}): Stoker would read what it wrote as new files; "
                "name a directory outside it",
            )


def nested_through_links(pipeline: Pipeline) -> list[tuple[tuple[str, ...], str]]:
    """The same of where the pipeline's paths really lead; asks the disks, so no daemon calls it."""
    source = pipeline.dataset.source
    if source.kind != "folder" or source.path is None:
        return []
    places = {"state": pipeline.state, "hot": pipeline.hot, "warm": pipeline.warm}
    real = {key: Path(os.path.realpath(path)) for key, path in places.items() if path is not None}
    return list(nested(Path(os.path.realpath(source.path)), real))
