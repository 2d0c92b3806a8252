"""Whose landing it is: two pipelines in one would take each other's files for wrong content."""

from __future__ import annotations

from stoker.corpus.fetch.landing import Landing
from stoker.kit.lock import Lock, read_contents
from stoker.store.errors import LockHeld, UnavailableError
from stoker.store.layout import LANDING_LOCK


def own(landing: Landing, pipeline: str) -> Lock:
    """Hold the landing for a pipeline, which `pipeline` names by "pipeline NAME (state DIRECTORY)".

    What the lock's file says holds after its end too. Raises UnavailableError where it is another's, or held.
    """
    file = landing.root / LANDING_LOCK
    owner = read_contents(file).purpose
    if owner and owner != pipeline:
        raise UnavailableError(
            f"{landing.root} is another's: {owner}; give this pipeline another dataset.name or disk, or, if "
            f"that one is gone or moved, remove {file}"
        )
    try:
        return Lock.acquire(file, purpose=pipeline)
    except LockHeld as error:
        raise UnavailableError(str(error)) from error
