"""Which shard sets can never come back, by the records of their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stoker.corpus.records.sources import Source


def by_key(sources: Iterable[Source], key_of: Callable[[str], str]) -> dict[str, Source]:
    """Returns the sources by their content's set key; of several with one content, the best informed."""
    known: dict[str, Source] = {}
    for source in sources:
        if source.sha256 not in known or source.state != "duplicate":
            known[source.sha256] = source
    return {key_of(sha256): source for sha256, source in known.items()}


def why_lost(key: str, sources: Mapping[str, Source]) -> str | None:
    """Returns why a set cannot come back; None where it exists or can come back."""
    source = sources.get(key)
    if source is None:
        return "its source has no record any more"
    if source.state != "quarantined":
        return None
    return f"{source.path} is quarantined" + (f" ({source.reason})" if source.reason else "")
