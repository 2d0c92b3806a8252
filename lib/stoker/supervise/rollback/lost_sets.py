"""Shard sets that the plan names and that cannot come back: no warm copy and no source is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stoker.corpus.records.sources import Source
from stoker.supervise.rollback.decide import RollbackRefused


def by_key(sources: Iterable[Source], key_of: Callable[[str], str]) -> dict[str, Source]:
    """The sources by the key of the set that their content gives, one that tells the most for each."""
    known: dict[str, Source] = {}
    for source in sources:
        if source.sha256 not in known or source.state != "duplicate":
            known[source.sha256] = source
    return {key_of(sha256): source for sha256, source in known.items()}


def require_lost(key: str, sources: Mapping[str, Source]) -> None:
    """RollbackRefused while the set is there, or can come back: nothing is given up that need not be."""
    if why_lost(key, sources) is None:
        source = sources[key]
        raise RollbackRefused(
            f"shard set {key[:16]} is not lost: {source.path} is {source.state}; the stage-shard loop "
            "brings it back, and the run waits for it"
        )


def why_lost(key: str, sources: Mapping[str, Source]) -> str | None:
    """Why a set cannot come back, in words; None where it can, or is there."""
    source = sources.get(key)
    if source is None:
        return "its source has no record any more"
    if source.state != "quarantined":
        return None
    return f"{source.path} is quarantined" + (f" ({source.reason})" if source.reason else "")
