"""Imports on record: under which path, and what to do with one that is on record already. No effects."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.records.books import Books
from stoker.corpus.records.pin import DatasetPin
from stoker.corpus.records.sources import PUBLISHED, Source

FOLDER = "import"
IMPORT = "import"  # the verb by which the stage-shard loop is asked
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


def misasked(args: Mapping[str, Any]) -> str | None:
    """Why what was asked is no import, None where it is one."""
    place, stated = args.get("place"), args.get("tokenizer_sha256")
    if not isinstance(place, str) or not place.startswith("/") or "\0" in place:
        return f"place {place!r} is no absolute path"
    if stated is not None and not isinstance(stated, str):
        return f"tokenizer_sha256 {stated!r} is no hash"
    return None


def task_of(pipeline: Pipeline, pin: DatasetPin, args: Mapping[str, Any]) -> dict[str, Any]:
    """The import worker's task for what was asked."""
    hot, tokenizer = pipeline.hot_layout, pin.tokenizer
    return {
        "place": args["place"],
        "dataset": pin.dataset,
        "build_id": pin.build_id,
        "shard_tokens": int(pin.build["shard_tokens"]),
        "tokenizer_sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "eot": tokenizer.eot,
        "building": str(hot.building),
        "shards": str(hot.shards(pin.dataset)),
        "floor": pipeline.stage.free_floor,
        "stated_tokenizer": args.get("tokenizer_sha256"),
        "trust_tokenizer": args.get("trust_tokenizer") is True,
    }


def proven(source: Source, result: Mapping[str, Any]) -> Source:
    """The record of an import whose set is published."""
    state = source.state if source.state in PUBLISHED else "proven"
    made = {name: result[name] for name in ("key", "manifest_sha256")}
    return source.moved(state, reason=None, books=Books.from_mapping(result["books"]), **made)


def outcome_of(source: Source, *, new: bool, notes: Collection[str] = ()) -> dict[str, Any]:
    """The answer to who asked for it."""
    books = None if source.books is None else source.books.to_mapping()
    return {"path": source.path, "key": source.key, "new": new, "books": books, "notes": list(notes)}
