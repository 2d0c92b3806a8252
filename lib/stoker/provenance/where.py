"""`stoker data where`: shows which steps saw a row of a source file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
import numpy as np

from stoker.cli.options import answer, did_you_mean, json_option, planned_file
from stoker.cli.which_run import read_identity, run_names
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import read_pin
from stoker.corpus.records.sources import PUBLISHED, Source, read_sources
from stoker.plan.log import Closed, Segment
from stoker.plan.permutation import invert
from stoker.provenance.set_index import Document, Library, SegmentMap
from stoker.provenance.step_history import History
from stoker.store.errors import DataError, UsageError

WORDS = {
    "applied": "step {}",
    "planned": "planned, not read yet",
    "skipped": "skipped by a rollback",
    "beyond": "planned, but the run ended before it",
}


@click.command(
    epilog="Example: stoker data where /etc/stoker/fineweb.yaml sample/350BT/000_00000.parquet:123456"
)
@planned_file
@click.argument("source_row", metavar="SOURCE:ROW")
@json_option
def where(pipeline: Pipeline, source_row: str, as_json: bool) -> int:
    """Show which steps of each run saw a ROW of a SOURCE, and where a plan names it that is not read yet.

    SOURCE is the file's path in the dataset as `stoker audit` and `stoker data batch` name it, ROW counts
    from 0. Reads only, and may run beside the daemons. Exit codes: 64 no such source or row; 65 files of a
    run contradict each other, the answer says which and shows the other runs; 69 its shard set is not
    available now.
    """
    report = find(pipeline, *parse(source_row))
    answer(report, report_lines(report), as_json=as_json)
    return DataError.exit_code if any("problem" in run for run in report["runs"]) else 0


def parse(source_row: str) -> tuple[str, int]:
    """Returns source and row; the source's name may contain colons."""
    source, colon, row = source_row.rpartition(":")
    if not colon or not source or not (row.isascii() and row.isdigit()):
        raise UsageError(f"{source_row!r} is not SOURCE:ROW; write one like part-0.parquet:17")
    return source, int(row)


def find(pipeline: Pipeline, path: str, row: int) -> dict[str, Any]:
    """Returns the report on a row: its fate in the build, and in each run the windows that hold it."""
    dataset = pipeline.dataset.name
    sources = read_sources(pipeline.layout, dataset)
    source = sources.get(path)
    if source is None:
        named = "sources are named by their path in the dataset, as `stoker data batch` shows them"
        hint = did_you_mean(path, sources, named)
        raise UsageError(f"{path!r} is no source of {dataset} on record; {hint}")
    same = (one for one in sources.values() if one.sha256 == source.sha256 and one.state != "duplicate")
    # the source whose shard set holds the content
    twin = next(same, None) if source.state == "duplicate" else None
    report: dict[str, Any] = {"v": 1, "pipeline": pipeline.name, "dataset": dataset}
    report |= {"source": path, "row": row, "source_state": source.state, "reason": source.reason}
    report["twin"] = None if twin is None else twin.path
    origin = twin or source
    pin = read_pin(pipeline.layout, dataset)
    library_of = functools.cache(lambda build_id: Library(pipeline, dataset, build_id, sources))
    if origin.state in PUBLISHED and pin is not None:
        report |= _fate(library_of(pin.build_id), origin, row)[0]
    else:
        report["fate"] = "quarantined" if origin.state == "quarantined" else "not_built"
    return {**report, "runs": list(_runs(pipeline, origin, row, library_of))}


def _fate(library: Library, source: Source, row: int) -> tuple[dict[str, Any], Document | None]:
    """Returns the fate of a row in a build, and its document if it is trained on.

    Raises UsageError for a row that the source lacks or that is unknown, UnavailableError where its set is
    not available.
    """
    found = library.open(library.key_of(source))
    books = found.manifest.books
    if books.rows is None:
        raise UsageError(f"{source.path} was imported: which rows its documents were is not known")
    if row >= books.rows:
        has = f"it has {books.rows} rows, 0 to {books.rows - 1}" if books.rows else "it has no rows"
        raise UsageError(f"{source.path} has no row {row}; {has}")
    told: dict[str, Any] = {"set": found.manifest.key, "place": found.place}
    for stream, fate in ((found.train, "train"), (found.val, "held_out")):
        if (document := stream.of_row(row)) is not None:
            at = {"document": document.number, "tokens": [document.first, document.stop]}
            return {**told, "fate": fate, **at}, document if fate == "train" else None
    return {**told, "fate": "filtered", "dropped": books.to_mapping()["dropped"]}, None


def _runs(
    pipeline: Pipeline, source: Source, row: int, library_of: Callable[[str], Library]
) -> Iterator[dict[str, Any]]:
    """Yields for each run over this dataset the windows that hold a row, or the problem with its files."""
    for name in run_names(pipeline.layout):
        try:
            identity = read_identity(pipeline.layout, name)
            if identity.dataset == pipeline.dataset.name:
                history = History(pipeline, name, run_id=identity.run_id)
                yield {"run": name, **_uses(history, source, row, library_of(identity.build_id))}
        except DataError as problem:
            yield {"run": name, "problem": str(problem)}


def _uses(history: History, source: Source, row: int, library: Library) -> dict[str, Any]:
    """Returns the windows of a run that hold a row, by the build that the run began with."""
    key = library.key_of(source)
    naming = [segment for segment in history.plan.segments if any(key == one for one, _ in segment.sets)]
    document = _fate(library, source, row)[1] if naming else None
    windows: list[dict[str, Any]] = []
    tails: list[int] = []
    for segment in naming:
        found = [] if document is None else list(_windows(segment, key, document, library))
        tails += [] if found or document is None or segment.dataset else [segment.n]
        windows += [{**one, **vars(history.use(segment.n, one["offset"]))} for one in found]
    epochs = {one.epoch for one in naming if document is not None} - {one["epoch"] for one in windows}
    tails += [one.n for one in history.plan.entries if isinstance(one, Closed) and one.epoch in epochs]
    return {
        "timeline": history.timeline,
        "step": history.last.step,
        "planned": bool(naming),
        "steps": sorted({one["step"] for one in windows if one["state"] == "applied"}),
        "windows": sorted(windows, key=lambda one: (one["entry"], one["offset"])),
        "tail_of": tails,
    }


def _windows(segment: Segment, key: str, document: Document, library: Library) -> Iterator[dict[str, Any]]:
    """Yields the windows of a plan entry that hold a token of a document; none if it is in the tail."""
    for start in SegmentMap(segment, library).starts_of(key):
        first, stop = start + document.first - segment.first, start + document.stop - segment.first
        # Window w reads the tokens from w * seq_len to (w + 1) * seq_len, both included: the last is only a
        # target.
        low = max(0, (first - 1) // segment.seq_len)
        high = min((stop - 1) // segment.seq_len, segment.windows - 1)
        windows = np.arange(low, high + 1)
        offsets = invert(segment.key, segment.windows, windows).tolist() if windows.size else []
        for window, offset in zip(windows.tolist(), offsets, strict=True):
            yield {"entry": segment.n, "epoch": segment.epoch, "window": window, "offset": offset}


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    if report["twin"] is not None:
        yield f"{report['source']} has the content of {report['twin']}, which stands for both"
    yield f"{report['source']} row {report['row']}: {_fate_words(report)}"
    for run in report["runs"]:
        if "problem" in run:
            yield f"  run {run['run']}: {run['problem']}"
        elif run["windows"] or report["fate"] not in ("held_out", "filtered"):
            yield from _run_lines(run)


def _fate_words(report: Mapping[str, Any]) -> str:
    fate = report["fate"]
    if "set" not in report:
        why = f"quarantined ({report['reason']})" if fate == "quarantined" else report["source_state"]
        return f"its file is {why} and is not built into a shard set: no step has seen it"
    at = f"set {report['set'][:16]}{' (on warm)' if report['place'] == 'warm' else ''}"
    if fate == "filtered":
        dropped = ", ".join(f"{reason} {rows}" for reason, rows in report["dropped"].items())
        return f"filtered, no step has seen it (rows of this file dropped: {dropped}); {at}"
    first, stop = report["tokens"]
    kind = "held out, never trained on" if fate == "held_out" else "to train on"
    return f"document {report['document']} {kind}, {stop - first} tokens; {at}"


def _run_lines(run: Mapping[str, Any]) -> Iterator[str]:
    steps = ", ".join(str(step) for step in run["steps"])
    seen = f"seen in step{'s' if len(run['steps']) > 1 else ''} {steps}" if steps else "not seen"
    yield f"  run {run['run']} at step {run['step']} of timeline {run['timeline']}: {seen}"
    if not run["planned"]:
        yield "    no entry of its plan names this file's shard set yet"
    for one in run["windows"]:
        words = WORDS[one["state"]].format(one["step"])
        if one["state"] == "applied" and not one["sealed"]:
            words += ", not sealed in a checkpoint yet"
        place = f"window {one['window']}  offset {one['offset']}"
        yield f"    entry {one['entry']} (epoch {one['epoch']})  {place}  {words}"
    for entry in run["tail_of"]:
        yield f"    entry {entry}: in its tail, shorter than a window, which is not read"
