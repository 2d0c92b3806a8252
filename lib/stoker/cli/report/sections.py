"""The sections of a report, in their order; each is made from disk alone."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.cli.report import machine, run
from stoker.cli.report.parts import Part, Section, Source
from stoker.config.schema import Pipeline
from stoker.observe.verdict import verdict


def sections_of(pipeline: Pipeline) -> list[Section]:
    """Returns the sections of the report on a pipeline and its run, the verdict first."""
    source, sections = Source(pipeline), []
    for title, make in SECTIONS.items():
        sections.append(section := Section(title))
        section.take(make(source))
    return sections


def _verdict(source: Source) -> Iterator[Part]:
    yield verdict(source.facts)
    for work, left in source.facts.times.items():
        yield f"{work}{' full' if work.endswith(' disk') else ''}: {left}"


SECTIONS = {
    "Time left": _verdict,
    "Loss": run.loss,
    "Throughput": run.speed,
    "Where the time went": run.goodput,
    "Launches": run.launches,
    "Memory by role": machine.memory,
    "GPUs": machine.gpus,
    "Disks": machine.disks,
    "Quarantine": machine.quarantine,
}
