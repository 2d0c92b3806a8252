"""Imports on record: under which path, and what to do with one that is on record already."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from stoker.corpus.records.sources import PUBLISHED, Source

FOLDER = "import"
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def claim(
    sources: Mapping[str, Source], taken: Collection[str], *, dataset: str, name: str, size: int, sha256: str
) -> Source:
    """The record of an imported content: as what it was before, else under its place's name.

    One that is published has the set already. `taken` are paths that a file of the dataset has, or may have.
    """
    known = [source for source in sources.values() if source.imported and source.sha256 == sha256]
    if published := next((source for source in known if source.state in PUBLISHED), None):
        return published
    if known:
        return known[0] if known[0].state == "seen" else known[0].renewed(size=size, sha256=sha256)
    path = path_of(name)
    path += f"-{sha256[:8]}" if path in sources or path in taken else ""
    return Source(dataset, path, size, sha256, imported=True)


def path_of(name: str) -> str:
    """The path of an import by the name of its place; never one that parquet has."""
    plain = _PLAIN.sub("_", name).strip("._")[:80] or "tokens"
    return f"{FOLDER}/{plain.removesuffix('.bin').removesuffix('.parquet')}"
