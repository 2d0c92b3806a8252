"""What a report is made of: sections, each with what could be read and what could not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from stoker.cli.report.samples import Columns, read_columns
from stoker.cli.report.steps import Steps, read_steps
from stoker.config.schema import Pipeline
from stoker.observe.drawing import Panel
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts, Verdict, verdict
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, RunLayout
from stoker.store.record import read_record
from stoker.supervise.outlook import gather


class Missing(NamedTuple):
    """Something that a section has not, and why."""

    text: str


class Table(NamedTuple):
    """Rows below a head; `bars` are shares, 0 to 1, that are drawn behind the rows' last cells."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    bars: Sequence[float] = ()


Part = str | Missing | Table | Panel


class Source:
    """A pipeline, of which each file is read once, when a section asks for it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.run: RunLayout = pipeline.layout.run(pipeline.train.run)

    @cached_property
    def daemons(self) -> dict[str, dict[str, Any]]:
        return read_status(self.pipeline.layout)

    @cached_property
    def facts(self) -> Facts:
        return gather(self.pipeline, self.daemons)

    @cached_property
    def steps(self) -> Steps:
        return read_steps(self.run.metrics)

    @cached_property
    def samples(self) -> dict[str, Columns]:
        return {daemon: read_columns(self.pipeline.layout.samples(daemon)) for daemon in DAEMONS}

    @cached_property
    def books(self) -> dict[str, Any] | None:
        """goodput.json; None before the run."""
        with contextlib.suppress(FileNotFoundError):
            return read_record(self.run.goodput)
        return None

    def body(self, daemon: str) -> dict[str, Any]:
        """Returns the status of a daemon that runs, else {}."""
        about = self.daemons[daemon]
        return about["body"] if about["running"] else {}


@dataclass
class Section:
    """A part of the page; `missing` says what is not there."""

    title: str
    lines: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)

    def take(self, parts: Iterator[Part]) -> None:
        """Takes the parts up to the first that cannot be made; then it says why."""
        places: dict[type, list[Any]] = {Missing: self.missing, Table: self.tables, Panel: self.panels}
        try:
            for part in parts:
                places.get(type(part), self.lines).append(part)
        except (StokerError, OSError) as error:
            self.missing.append(Missing(str(error)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Of all that other versions wrote, each file may lack a field or have another kind of value.
            why = f"what is on disk has another form than this version of Stoker writes ({error!r})"
            self.missing.append(Missing(why))


@dataclass
class Report:
    """A whole report; `verdict` is None where it cannot be given, as `first` says."""

    pipeline: str
    file: str
    run: str
    time: str
    verdict: Verdict | None
    first: Section  # the times left
    sections: list[Section]


def judged(source: Source) -> tuple[Verdict | None, Section]:
    """Returns the verdict and the times left."""
    found, judgement = Section("Time left"), list[Verdict]()

    def parts() -> Iterator[Part]:
        judgement.append(verdict(source.facts))
        yield from (f"{work}: {left}" for work, left in source.facts.times.items())

    found.take(parts())
    return (judgement[0] if judgement else None), found
