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
from stoker.corpus.quarantine.directory import read_folder, refusal
from stoker.corpus.records.receipts import Receipt, read_listing
from stoker.corpus.records.sources import EXCEEDS_DISK, KEY16, PUBLISHED, Source
from stoker.store.errors import UsageError

LEAST_DIGITS = 6  # of a shard set's key, which has 64
MOST_NAMED = 5  # keys of an ambiguous prefix
KEY = re.compile(f"[0-9a-f]{{{LEAST_DIGITS},64}}")
DONE = "nothing: its shard set is done, and trained on where the plan has it"
STAYS = "nothing by itself: somebody has to release it"


def source(question: Question) -> Description | None:
    """Describes a source by its record and its receipt, or by the listing before it has any."""
    pipeline, path = question.pipeline, question.thing
    layout, dataset = pipeline.layout, pipeline.dataset.name
    record = question.record(Source.from_record, layout.source(dataset, path))
    receipt = question.record(Receipt.from_record, layout.receipt(dataset, path))
    if record is None and receipt is None and path not in listed(question):
        return None
    facts: dict[str, Any] = asdict(record) if record else {"dataset": dataset, "state": "not taken up"}
    facts |= {"receipt": receipt and receipt.state, "file": receipt and receipt.file}
    if record and record.books:
        facts["rows_dropped"] = dict(record.books.dropped or ())
    names = {path}
    if record and record.key:
        names |= {record.key, record.key16}
        disks = (
            pipeline.hot_layout if record.hot else None,
            pipeline.warm_layout if record.on_warm else None,
        )
        facts["set_at"] = [str(disk.shard_set(dataset, record.key)) for disk in disks if disk]
    if record and record.state == "duplicate":
        same = _with(question, f'"sha256":"{record.sha256}"')
        facts["duplicate_of"] = next((one.path for one in same if one.state in PUBLISHED), None)
    history = question.history(lambda each: not names.isdisjoint((each.get("path"), each.get("key"))))
    return Description(path, facts, upcoming(pipeline, record, receipt), _do(pipeline, path, record), history)


def upcoming(pipeline: Pipeline, record: Source | None, receipt: Receipt | None) -> str:
    """Returns what becomes of a source next, as its records have it."""
    is_open = record is None or record.state == "seen" or record.never_came
    if is_open and receipt is not None and receipt.unobtainable:
        return "it is taken up when its content arrives, which no fetch has brought"
    if record is None or record.state == "seen":
        is_here = receipt is not None and receipt.usable
        return "it is staged when its turn comes" if is_here else "the download watchdog fetches or hashes it"
    again_s, release = pipeline.quarantine.revalidate, pipeline.shard.release
    if record.state == "quarantined":
        is_left = record.reason == EXCEEDS_DISK or again_s is None
        return STAYS if is_left else f"it is checked again every {format_duration(again_s or 0)}"
    if record.evicted or record.evicting:
        return "its shard set is on warm alone, and comes back when a run needs it"
    if record.state == "proven" and pipeline.warm is not None and not record.on_warm:
        return "its shard set is copied to warm"
    if (record.state, release) in (("proven", "after_proof"), ("synced", "after_sync")):
        return "its parquet leaves hot"
    return {
        "staged": "its shard set is built when its turn comes",
        "building": "its shard set is published, then proven",
        "duplicate": "nothing: another source has the same content and its shard set",
    }.get(record.state, DONE)


def _do(pipeline: Pipeline, path: str, record: Source | None) -> tuple[str, ...]:
    of = f"{pipeline.file} {shlex.quote(path)}"
    if record is not None and record.state == "quarantined":
        show, again = f"`stoker quarantine show {of}`", f"`stoker quarantine release {of}`"
        return f"{show} has the whole reason", f"{again} has it fetched, or checked, again"
    if record is not None and record.state in PUBLISHED:
        return (f"`stoker data where {of}:0` shows which steps saw its row 0",)
    return ()


def _with(question: Question, needle: str) -> Iterator[Source]:
    """Yields the sources whose record holds this text; only these are parsed, as there may be 50,000."""
    directory = question.pipeline.layout.sources
    for file in map(directory.joinpath, sorted(question.read(os.listdir, directory) or ())):
        if needle.encode() in (question.read(Path.read_bytes, file) or b""):
            found = question.record(Source.from_record, file)
            yield from () if found is None else (found,)


def shard_set(question: Question) -> Description | None:
    """Describes the shard set whose key begins so, by its source; raises UsageError for several."""
    prefix = question.thing.lower()
    if KEY.fullmatch(prefix) is None:
        return None
    found = {str(one.key): one.path for one in _with(question, f'"key":"{prefix}')}
    if len(found) > 1:
        named = ", ".join(f"{key[:KEY16]} ({path})" for key, path in [*found.items()][:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
        raise UsageError(f"{question.thing!r} begins {len(found):,} keys: {named}{more}; give more digits")
    for key, path in found.items():
        described = source(replace(question, thing=path))
        return described and replace(described, name=key)
    return None


def quarantined(question: Question) -> Description | None:
    """Describes an entry of the quarantine by its reason, and by what its source is now."""
    pipeline, name = question.pipeline, question.thing
    folder = pipeline.layout.quarantine / name
    kept = question.read(read_folder, folder) if name in entries(question) else None
    if kept is None:
        return None
    place = pipeline.layout.source(pipeline.dataset.name, kept.path)
    record = question.record(Source.from_record, place) if kept.kind == "parquet" else None
    no = refusal(kept, record)
    facts = {"kind": kept.kind, **kept.body, "kept_bytes": kept.bytes}
    facts["kept"] = [str(folder / thing) for thing in kept.things]
    then = f"nothing by itself: {no}" if no else upcoming(pipeline, record, None)
    of = f"{pipeline.file} {shlex.quote(name)}"
    do = [] if no or kept.released else [f"`stoker quarantine release {of}` gives its source another try"]
    do += [f"`stoker quarantine drop {of}` deletes what is kept of it"] if kept.things else []
    history = question.history(
        lambda each: each.get("path") == (kept.path or name) or Path(str(each.get("folder"))).name == name
    )
    return Description(name, facts, then, tuple(do), history)


def entries(question: Question) -> Iterable[str]:
    """Returns the names of the quarantine's folders."""
    found = question.read(os.listdir, question.pipeline.layout.quarantine) or ()
    return [name for name in found if not name.startswith(".")]


def listed(question: Question) -> Iterable[str]:
    """Returns the paths of the source as it was listed last."""
    listing = question.read(read_listing, question.pipeline.layout, question.pipeline.dataset.name)
    return listing.paths if listing else ()
