"""`stoker audit`: books x manifests x sizes x plan x checkpoints, recounted from what is on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import json_option, one_line, pipeline_file, print_json

MOST_NAMED = 5


@click.command(epilog="Example: stoker audit /etc/stoker/fineweb.yaml --json")
@pipeline_file
@click.option("--deep", is_flag=True, help="Hash every byte, and count parquet again where it still is.")
@json_option
def audit(file: Path, deep: bool, as_json: bool) -> int:
    """Recount a pipeline's books from what is on disk.

    Reads only, and may run beside the daemons. Exit code 1: something disagrees, or there is nothing to
    audit; each finding names the file and the figure.
    """
    from stoker.config.load import load_pipeline
    from stoker.shards.audit.audit import audit_sets
    from stoker.supervise.audit.audit import audit_run

    pipeline = load_pipeline(file)
    # The run first: what it has consumed must be found in shard sets that are looked at later, not earlier.
    run = audit_run(pipeline, deep=deep)
    data = audit_sets(pipeline, deep)
    findings = [*data.findings, *run.findings]
    report = {
        "v": 1,
        "balanced": not findings,
        "deep": deep,
        **data.figures(),
        **run.figures(),
        "recounted": [*data.recounted, "plan", "checkpoints"],
        "on_record": [*data.on_record, *run.on_record],
        "findings": findings,
    }
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(map(one_line, report_lines(pipeline.name, report))))
    return 1 if findings else 0


def report_lines(name: str, report: Mapping[str, Any]) -> Iterator[str]:
    """The audit for a person."""
    sources, plan, checkpoints = report["sources"], report["plan"], report["checkpoints"]
    dropped, tokens = report["dropped"], report["tokens"]
    why = f" ({', '.join(f'{reason} {rows:,}' for reason, rows in dropped.items())})" if dropped else ""
    yield f"{name}: {'balanced' if report['balanced'] else 'NOT balanced'}"
    yield f"  sources      {_counts(sources)}"
    yield (
        f"  rows         {report['rows']:,} = {report['documents']:,} documents + "
        f"{sum(dropped.values()):,} dropped{why}"
    )
    if report["imported"]["sets"]:
        yield f"  imported     {_imported(report['imported'])}"
    if report["changed"]:
        files = _named(report["changed"], "after its set was built")
        yield f"  changed      {files}; the set of the former content stays, training reads both"
    if report["unproven"]:
        yield f"  unproven     {_named(report['unproven'], 'that came without a length or a sum')}"
    yield f"  tokens       {tokens['train']:,} to train on + {tokens['val']:,} held out"
    yield (
        f"  plan         {plan['windows']:,} windows in {plan['entries']} entries = "
        f"{plan['applied']:,} applied + {plan['skipped']:,} skipped + {plan['remainder']:,} remainder + "
        f"{plan['ahead']:,} ahead; {plan['tail_tokens']:,} tail tokens"
    )
    yield f"  checkpoints  {_counts(checkpoints)}"
    yield f"  recounted    {', '.join(report['recounted'])}"
    if report["on_record"]:
        yield f"  on record    {', '.join(report['on_record'])} (--deep looks at it itself)"
    if report["findings"]:
        count = len(report["findings"])
        yield f"{count} finding{'' if count == 1 else 's'}:"
        yield from (f"  {finding}" for finding in report["findings"])


def _named(paths: Sequence[str], what: str) -> str:
    """How many files, and which."""
    named = ", ".join(paths[:MOST_NAMED]) + (" and more" if len(paths) > MOST_NAMED else "")
    return f"{len(paths):,} file{'s' * (len(paths) != 1)} {what}: {named}"


def _imported(figures: Mapping[str, int]) -> str:
    """What is known of sets that were taken over."""
    sets, without = figures["sets"], figures["documents_not_known"]
    known = f", {figures['documents']:,} documents" if without < sets else ""
    unknown = f", documents not known of {without:,}" if without else ""
    counted = f"{sets:,} set{'s' * (sets != 1)}, {figures['tokens']:,} tokens"
    return f"{counted}{known}{unknown}; rows are not known"


def _counts(figures: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in figures.items())
