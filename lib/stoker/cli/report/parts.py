"""What a report is made of: sections, each with what could be read and what could not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from stoker.cli.report.series import Steps, read_columns, read_steps
from stoker.config.schema import Pipeline
from stoker.observe.drawing import Panel, Points
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts, Verdict
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, RunLayout
from stoker.store.record import read_record
from stoker.supervise.outlook import gather

MOST_ROWS = 50  # of a table


class Missing(NamedTuple):
    """Something that a section has not, and why."""

    text: str


class Table(NamedTuple):
    """Rows below a head; `bars` are shares, 0 to 1, that are drawn below the last cells of the rows."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    bars: Sequence[float] = ()


def shown_of(rows: Sequence[object]) -> str:
    """Returns the words on how many of the rows are shown, the newest; "" for all."""
    return f", of which {MOST_ROWS} are shown" if len(rows) > MOST_ROWS else ""


Part = str | Missing | Table | Panel | Verdict


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
    def samples(self) -> dict[str, dict[str, Points]]:
        return {daemon: read_columns(self.pipeline.layout.samples(daemon)) for daemon in DAEMONS}

    @cached_property
    def books(self) -> dict[str, Any] | None:
        """goodput.json; None before the run."""
        with contextlib.suppress(FileNotFoundError):
            return read_record(self.run.goodput)
        return None


@dataclass
class Section:
    """A part of the page, by kinds of its parts; `missing` says what is not there."""

    title: str
    lines: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def take(self, parts: Iterator[Part]) -> None:
        """Takes the parts up to the first that cannot be made; then it says why."""
        kinds: dict[type, list[Any]] = {str: self.lines, Missing: self.missing, Table: self.tables}
        kinds |= {Panel: self.panels, Verdict: self.verdicts}
        try:
            for part in parts:
                kinds[type(part)].append(part)
        except (StokerError, OSError) as error:
            self.missing.append(Missing(str(error)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Of all that other versions wrote, each file may lack a field or have another kind of value.
            why = f"what is on disk has another form than this version of Stoker writes ({error!r})"
            self.missing.append(Missing(why))
