"""`stoker audit`: recounts books, manifests, sizes, plan and checkpoints from disk, and compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import answer, counts, json_option, pipeline_file, plural
from stoker.config.schema import Pipeline
from stoker.shards.audit.audit import audit_sets
from stoker.store.errors import DataError
from stoker.store.record import read_record, write_record
from stoker.supervise.audit.audit import audit_run

MOST_NAMED = 5


@click.command(epilog="Example: stoker audit /etc/stoker/fineweb.yaml --json")
@pipeline_file
@click.option("--deep", is_flag=True, help="Hash every byte, and count parquet again where it still is.")
@click.option("--keep", is_flag=True, help="Keep the verdict for the metrics, as the daemons' user.")
@json_option
def audit(pipeline: Pipeline, deep: bool, keep: bool, as_json: bool) -> int:
    """Recount a pipeline's documents, tokens and steps from the files on disk.

    Reads only, but for --keep, and may run beside the daemons. Exit code 1: something disagrees, or there
    is nothing to audit; each finding names the file and the figure.
    """
    # The run first: data that the run has consumed must be in shard sets that are read later, not earlier.
    run = audit_run(pipeline, deep=deep)
    data = audit_sets(pipeline, deep)  # all zero without a dataset
    findings = [*data.findings, *run.findings]
    if keep and pipeline.has_data and not data.sources["proven"] and len(findings) == 1:
        click.echo(f"{pipeline.name}: no shard set is on record yet: nothing to audit, nothing is kept")
        return 0
    report: dict[str, Any] = {"v": 1, "balanced": not findings, "deep": deep}
    report |= {**data.figures(), **run.figures(), "recounted": [*data.recounted, "plan", "checkpoints"]}
    report |= {"on_record": [*data.on_record, *run.on_record], "findings": findings}
    if keep:
        _keep(pipeline.layout.audit, report)
    without = [*(() if pipeline.has_data else ("rows", "tokens"))]
    without += () if pipeline.train.follows_plan else ("plan",)
    answer(report, report_lines(pipeline.name, report, without), as_json=as_json)
    return 1 if findings else 0


def _keep(record: Path, report: Mapping[str, Any]) -> None:
    """Keeps the verdict; what a deep audit found stands until a deep one does not find it again."""
    found_deep = report["findings"] if report["deep"] else []
    if not report["deep"]:
        with suppress(FileNotFoundError, DataError):
            found_deep = read_record(record).get("found_deep", [])
    findings = list(dict.fromkeys([*report["findings"], *found_deep]))
    kept = {"balanced": not findings, "findings": findings, "found_deep": found_deep}
    write_record(record, {**report, **kept})


def report_lines(name: str, report: Mapping[str, Any], without: Sequence[str] = ()) -> Iterator[str]:
    yield f"{name}: {'balanced' if report['balanced'] else 'NOT balanced'}"
    yield from (f"  {what:<12} {text}" for what, text in _figures(report) if text and what not in without)
    if findings := report["findings"]:
        yield f"{plural(len(findings), 'finding')}:"
        yield from (f"  {finding}" for finding in findings)


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plan, dropped, tokens = report["plan"], report["dropped"], report["tokens"]
    yield "sources", counts(report["sources"])
    why = f" ({', '.join(f'{reason} {rows:,}' for reason, rows in dropped.items())})" if dropped else ""
    kept = f"{report['documents']:,} documents + {sum(dropped.values()):,} dropped{why}"
    yield "rows", f"{report['rows']:,} = {kept}"
    yield "imported", _imported(report["imported"]) if report["imported"]["sets"] else ""
    changed = _named(report["changed"], "after its set was built")
    yield "changed", f"{changed}; the set of the former content stays, training reads both" if changed else ""
    yield "unproven", _named(report["unproven"], "that came without a length or a sum")
    yield "tokens", f"{tokens['train']:,} to train on + {tokens['val']:,} held out"
    parts = " + ".join(f"{plan[name]:,} {name}" for name in ("applied", "skipped", "remainder", "ahead"))
    windows = f"{plan['windows']:,} windows in {plan['entries']} entries = {parts}"
    yield "plan", f"{windows}; {plan['tail_tokens']:,} tail tokens"
    yield "checkpoints", counts(report["checkpoints"])
    yield "recounted", ", ".join(report["recounted"])
    on_record = ", ".join(report["on_record"])
    yield "on record", f"{on_record} (--deep checks it itself)" if on_record else ""


def _named(paths: Sequence[str], what: str) -> str:
    """Returns the number of files and the first names; empty for no files."""
    named = ", ".join(paths[:MOST_NAMED]) + (" and more" if len(paths) > MOST_NAMED else "")
    return f"{plural(len(paths), 'file')} {what}: {named}" if paths else ""


def _imported(figures: Mapping[str, int]) -> str:
    """Returns a summary of the imported sets."""
    sets, without = figures["sets"], figures["documents_not_known"]
    known = f", {figures['documents']:,} documents" if without < sets else ""
    unknown = f", documents not known of {without:,}" if without else ""
    return f"{plural(sets, 'set')}, {figures['tokens']:,} tokens{known}{unknown}; rows are not known"
