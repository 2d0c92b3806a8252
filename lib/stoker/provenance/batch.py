"""`stoker data batch`: shows the documents of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import numpy as np

from stoker.cli.complete import offer
from stoker.cli.options import json_option, planned_file, print_json, printable
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.corpus.records.sources import read_sources
from stoker.plan.permutation import permute
from stoker.provenance.set_index import Library, SegmentMap
from stoker.provenance.step_history import History, Step
from stoker.store.errors import DataError, storage_errors
from stoker.supervise.run.record import Identity


@click.command(epilog="Example: stoker data batch /etc/stoker/fineweb.yaml main 1200 --show")
@planned_file
@click.argument("run", shell_complete=offer("run"))
@click.argument("step", type=int, shell_complete=offer("step"))
@click.option("--timeline", type=int, help="An abandoned timeline; without it the current one.")
@click.option("--show", is_flag=True, help="Print the text of each window too.")
@json_option
def batch(  # noqa: PLR0917 - click passes an argument per option
    pipeline: Pipeline, run: str, step: int, timeline: int | None, show: bool, as_json: bool
) -> None:
    """Show which documents were in a STEP of a RUN: each window's place in the plan, source file and rows.

    Also of the step that comes next, as of one that was not finite. Reads only, and may run beside the
    daemons. Rows count from 0 in their file. Exit codes: 64 the run has not come to this step; 69 one of its
    shard sets is not available now.
    """
    identity = read_identity(pipeline.layout, run)
    history = History(pipeline, run, timeline, run_id=identity.run_id)
    made = history.step(step)
    sources = read_sources(pipeline.layout, identity.dataset)
    library = Library(pipeline, identity.dataset, identity.build_id, sources)
    decode = decoder(pipeline, identity) if show else None
    report = {"v": 1, "pipeline": pipeline.name, "run": run, "step": step}
    report |= {"timeline": made.timeline, "made": made.made, "sealed": made.sealed}
    report |= {"begins": made.begins.as_list(), "ends": made.ends.as_list()}
    report |= {"windows": list(_windows(made, history.plan.entries, library, decode))}
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(report_lines(report)))


Decode = Callable[[Sequence[int]], str]


def _windows(
    made: Step, entries: Sequence[Any], library: Library, decode: Decode | None
) -> Iterator[dict[str, Any]]:
    """Yields every window of a step in order: its place in the plan, and its contents."""
    for entry, offsets in made.pieces:
        segment, layout = entries[entry], SegmentMap(entries[entry], library)
        windows = permute(segment.key, segment.windows, np.asarray(offsets, dtype=np.int64))
        for offset, window in zip(offsets, windows.tolist(), strict=True):
            first = segment.first + window * segment.seq_len
            stop = first + segment.seq_len + 1
            fields = {"entry": entry, "epoch": segment.epoch, "offset": offset, "window": window}
            yield {**fields, "tokens": [first, stop], **_contents(layout, first, stop, library, decode)}


def _contents(
    layout: SegmentMap, first: int, stop: int, library: Library, decode: Decode | None
) -> dict[str, Any]:
    """Returns the sets, documents and, with a decoder, the text of a range of an entry's tokens."""
    sets, ids = [], []
    for key, stream, low, high in layout.parts(first, stop):
        source, found = library.source_of(key), library.open(key)
        documents = [
            {
                "document": document.number,
                "row": document.row,
                "tokens": [max(low, document.first), min(high, document.stop)],
                "of": document.stop - document.first,
            }
            for document in stream.documents(low, high)
        ]
        fields: dict[str, Any] = {"set": key, "source": source and source.path, "place": found.place}
        sets.append(
            {**fields, "tokens": [low, high], "documents": documents if found.manifest.end_of_text else None}
        )
        if decode is not None:
            ids += stream.read(low, high).tolist()
    return {"sets": sets, **({} if decode is None else {"text": decode(ids)})}


def decoder(pipeline: Pipeline, identity: Identity) -> Decode:
    """Returns a function from ids to text, end-of-text included, for the tokenizer of the run's dataset.

    Raises DataError where the tokenizer on disk is not that tokenizer any more.
    """
    from tokenizers import Tokenizer

    path = pipeline.layout.tokenizer(identity.dataset, identity.dataset_version)
    with storage_errors("read", path):
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != identity.tokenizer_sha256:
        raise DataError(f"{path}: not the tokenizer that run {identity.run} began with; restore it")
    tokenizer = Tokenizer.from_str(data.decode())
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    windows = report["windows"]
    sealed = "sealed in a checkpoint" if report["sealed"] else "not sealed in a checkpoint yet"
    sealed = sealed if report["made"] else "not made yet"
    step = f"run {report['run']}, step {report['step']} of timeline {report['timeline']}"
    yield f"{step}: {len(windows)} windows, positions {report['begins']} to {report['ends']}, {sealed}"
    for number, window in enumerate(windows, start=1):
        place = f"offset {window['offset']}  window {window['window']}"
        tokens = f"tokens {window['tokens'][0]}-{window['tokens'][1] - 1}"
        yield f"{number:>4}  entry {window['entry']} (epoch {window['epoch']})  {place}  {tokens}"
        for part in window["sets"]:
            source = part["source"] or "a source that is no longer on record"
            warm = ", read from warm" if part["place"] == "warm" else ""
            yield f"      {source}  {_rows(part['documents'])}  set {part['set'][:16]}{warm}"
        if "text" in window:
            yield from (f"    | {line}" for line in printable(window["text"]).split("\n"))


def _rows(documents: Sequence[Mapping[str, Any]] | None) -> str:
    """Returns the documents by row, else by number; for imported tokens neither may be known."""
    if documents is None:
        return "imported, documents not known"
    if any(document["row"] is None for document in documents):
        return f"documents {', '.join(str(document['document']) for document in documents)} (imported)"
    return f"rows {', '.join(str(document['row']) for document in documents)}"
