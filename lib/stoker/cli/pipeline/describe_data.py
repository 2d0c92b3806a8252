"""What `stoker describe` knows of a source, a shard set and an entry of the quarantine."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stoker.cli.pipeline.described import Description, Question
from stoker.config.schema import Pipeline
from stoker.config.units import format_duration
from stoker.corpus.quarantine.directory import QuarantineEntry, read_folder, refusal
from stoker.corpus.records.receipts import Receipt, read_listing
from stoker.corpus.records.sources import EXCEEDS_DISK, KEY16, PUBLISHED, Source
from stoker.store.errors import UsageError

LEAST_DIGITS, ALL_DIGITS = 6, 64  # of a shard set's key
MOST_NAMED = 5  # keys of an ambiguous prefix
NOT_FACTS = ("v", "released", "dropping", "dropped")  # of a reason: shown in words, or no fact


def is_hex(thing: str) -> bool:
    return re.fullmatch("[0-9a-f]+", thing.lower()) is not None


def sources(question: Question) -> Iterable[str]:
    """Returns the paths of the source as it was listed last."""
    listing = question.read(read_listing, question.pipeline.layout, question.pipeline.dataset.name)
    return listing.paths if listing else ()


def source(question: Question) -> Description | None:
    """Describes a source by its record and its receipt, or by the listing before it has any."""
    pipeline, path = question.pipeline, question.thing
    layout, dataset = pipeline.layout, pipeline.dataset.name
    if not pipeline.has_data:
        return None
    record = question.record(Source.from_record, layout.source(dataset, path))
    receipt = question.record(Receipt.from_record, layout.receipt(dataset, path))
    if record is None and receipt is None and path not in sources(question):
        return None
    owner = _owner(question, record) if record is not None and record.state == "duplicate" else None
    facts: dict[str, Any] = {
        "dataset": dataset,
        "state": record.state if record else "not taken up",
        "reason": record and record.reason,
        "column": record and record.column,
        "failed_builds": (record and record.attempts) or None,
        "duplicate_of": owner,
        "receipt": receipt and receipt.state,
        "file": receipt and receipt.file,
        "size_bytes": record.size if record else receipt and receipt.size,
        "sha256": record.sha256 if record else receipt and receipt.sha256,
    }
    facts |= _set(pipeline, record) if record and record.key else {}
    then = upcoming(pipeline, record, receipt, owner)
    names = {path, *((record.key, record.key16) if record and record.key else ())}
    history = question.history(lambda each: not names.isdisjoint((each.get("path"), each.get("key"))))
    return Description(path, facts, then, tuple(_steps(pipeline, path, record, receipt)), history)


def _set(pipeline: Pipeline, record: Source) -> dict[str, Any]:
    """Returns what is known of a source's shard set, and where it is by the record."""
    dataset, key = pipeline.dataset.name, record.key or ""
    disks = (pipeline.hot_layout if record.hot else None, pipeline.warm_layout if record.on_warm else None)
    books = asdict(record.books) if record.books else {}
    return {
        "key": key,
        "set_at": [str(disk.shard_set(dataset, key)) for disk in disks if disk],
        **{name: books.get(name) for name in ("rows", "documents", "train_tokens", "val_tokens")},
        "rows_dropped": dict(books.get("dropped") or ()),
    }


def upcoming(pipeline: Pipeline, record: Source | None, receipt: Receipt | None, owner: str | None) -> str:
    """Returns what becomes of a source next, as its records have it."""
    if (
        receipt is not None
        and receipt.unobtainable
        and (record is None or record.state in ("seen", "quarantined"))
    ):
        return "it is taken up when its content arrives, which no fetch has brought"
    if receipt is not None and receipt.state == "disputed":
        return "it is fetched again: its content was found wrong"
    if record is None or record.state == "seen":
        is_here = receipt is not None and receipt.usable
        return "it is staged when its turn comes" if is_here else "the download watchdog fetches or hashes it"
    again_s, release = pipeline.quarantine.revalidate, pipeline.shard.release
    if record.state == "quarantined" and record.reason != EXCEEDS_DISK and again_s is not None:
        return f"it is checked again every {format_duration(again_s)}"
    if record.state in PUBLISHED and record.evicting:
        return "its shard set leaves hot; warm has a copy"
    if record.state in PUBLISHED and record.evicted:
        return "its shard set comes back from warm when a run needs it"
    if record.state == "proven" and pipeline.warm is not None and not record.on_warm:
        return "its shard set is copied to warm"
    if (record.state, release) in (("proven", "after_proof"), ("synced", "after_sync")):
        return "its parquet leaves hot"
    return {
        "staged": "its shard set is built when its turn comes",
        "building": "its shard set is published, then proven",
        "quarantined": "nothing by itself: somebody has to release it",
        "duplicate": f"nothing: {owner or 'another source'} has the same content and its shard set",
    }.get(record.state, "nothing: its shard set is done, and trained on where the plan has it")


def _steps(pipeline: Pipeline, path: str, record: Source | None, receipt: Receipt | None) -> Iterator[str]:
    """Yields what a person can do with a source."""
    of = f"{pipeline.file} {shlex.quote(path)}"
    if (receipt and receipt.unobtainable) or (record and record.state == "quarantined"):
        yield f"`stoker quarantine show {of}` has the whole reason"
        yield f"`stoker quarantine release {of}` has it checked, or fetched, again"
    elif record and record.state in PUBLISHED:
        yield f"`stoker data where {of}:0` shows which steps saw its row 0"
        if record.hot:
            place = pipeline.hot_layout.shard_set(pipeline.dataset.name, record.key or "")
            yield f"`stoker verify shards {place}` proves its set"


def _with(question: Question, needle: str) -> Iterator[Source]:
    """Yields the sources whose record holds this text; only these are parsed, as there may be 50,000."""
    directory = question.pipeline.layout.sources
    for file in map(directory.joinpath, sorted(question.read(os.listdir, directory) or ())):
        if needle.encode() in (question.read(Path.read_bytes, file) or b""):
            found = question.record(Source.from_record, file)
            yield from () if found is None else (found,)


def _owner(question: Question, record: Source) -> str | None:
    same = _with(question, f'"sha256":"{record.sha256}"')
    return next((one.path for one in same if one.state in PUBLISHED), None)


def shard_set(question: Question) -> Description | None:
    """Describes the shard set whose key begins so, by its source; raises UsageError for several."""
    prefix = question.thing.lower()
    if not is_hex(prefix) or not LEAST_DIGITS <= len(prefix) <= ALL_DIGITS:
        return None
    found = {one.key: one.path for one in _with(question, f'"key":"{prefix}') if one.key}
    if len(found) > 1:
        named = ", ".join(f"{str(key)[:KEY16]} ({path})" for key, path in [*found.items()][:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
        raise UsageError(f"{question.thing!r} begins {len(found):,} keys: {named}{more}; give more digits")
    for key, path in found.items():
        if (described := source(replace(question, thing=path))) is not None:
            return replace(described, name=str(key), facts={"source": path, **described.facts})
    return None


def quarantine(question: Question) -> Iterable[str]:
    """Returns the names of the quarantine's folders."""
    found = question.read(os.listdir, question.pipeline.layout.quarantine) or ()
    return [name for name in found if not name.startswith(".")]


def quarantined(question: Question) -> Description | None:
    """Describes an entry of the quarantine by its reason, and what its source is now."""
    pipeline, name = question.pipeline, question.thing
    if name not in quarantine(question):
        return None
    folder = pipeline.layout.quarantine / name
    kept = question.read(read_folder, folder) or QuarantineEntry(name, "other")
    record = None
    if kept.kind == "parquet" and kept.path and pipeline.has_data:
        record = question.record(Source.from_record, pipeline.layout.source(pipeline.dataset.name, kept.path))
    facts = {key: value for key, value in kept.body.items() if key not in NOT_FACTS}
    facts |= {mark: getattr(kept, mark) for mark in NOT_FACTS[1:]}
    facts |= {
        "kind": kept.kind,
        "kept": [str(folder / thing) for thing in kept.things],
        "kept_bytes": kept.bytes,
    }
    no = refusal(kept, record)
    if kept.released is not None:
        then = "nothing: its source was given another try"
    else:
        then = f"nothing by itself: {no}" if no else upcoming(pipeline, record, None, None)
    of, do = f"{pipeline.file} {shlex.quote(name)}", list[str]()
    if no is None and kept.released is None:
        do.append(f"`stoker quarantine release {of}` gives its source another try")
    if kept.things:
        do.append(f"`stoker quarantine drop {of}` deletes what is kept of it")
    history = question.history(
        lambda each: each.get("path") == (kept.path or name) or Path(str(each.get("folder"))).name == name
    )
    return Description(name, facts, then, tuple(do), history)
