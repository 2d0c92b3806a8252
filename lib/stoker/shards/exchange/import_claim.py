"""Imports on record: under which path, and what to do with one that is on record already."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stoker.corpus.records.sources import PUBLISHED, Source

FOLDER = "import"
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Claim:
    """The record to write before the tokens are copied; `twin`: it has the set already, nothing is copied."""

    source: Source
    twin: bool


def claim(
    sources: Mapping[str, Source], taken: Collection[str], *, dataset: str, name: str, size: int, sha256: str
) -> Claim:
    """Put a content on record: as what it was before, else under its place's name.

    `taken` are paths that a file of the dataset has, or may have.
    """
    known = [source for source in sources.values() if source.imported and source.sha256 == sha256]
    if published := next((source for source in known if source.state in PUBLISHED), None):
        return Claim(published, twin=True)
    if known:
        again = known[0] if known[0].state == "seen" else known[0].renewed(size=size, sha256=sha256)
        return Claim(again, twin=False)
    path = path_of(name)
    path += f"-{sha256[:8]}" if path in sources or path in taken else ""
    return Claim(Source(dataset, path, size, sha256, imported=True), twin=False)


def path_of(name: str) -> str:
    """The path of an import by the name of its place; never one that parquet has."""
    plain = _PLAIN.sub("_", name).strip("._")[:80] or "tokens"
    return f"{FOLDER}/{plain.removesuffix('.bin').removesuffix('.parquet')}"
