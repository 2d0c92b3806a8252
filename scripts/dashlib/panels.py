"""What a panel, a row, a dashboard is; the Grafana dashboards and the console page are made from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["timeseries", "stat", "states", "table"]
Steps = tuple[tuple[float | None, str], ...]

GOOD, WARN, BAD, INFO, IDLE = "green", "orange", "red", "blue", "#8e8e8e"
COLUMNS = 24  # of Grafana's grid; a panel's width counts them
HEIGHTS: Mapping[Kind, int] = {"timeseries": 7, "stat": 3, "states": 7, "table": 7}  # in Grafana's units


def of_pipeline(expr: str) -> str:
    """The expression with the selector `{*}`, or the first part `{*,`, made that of the pipeline shown."""
    return expr.replace("{*", '{pipeline="$pipeline"')


@dataclass(frozen=True)
class Panel:
    """A panel.

    `unit` is Grafana's name of a unit. `queries` are expressions by their legend, in which `{{label}}` stands
    for a label's value; `{*}` selects the pipeline. `thresholds` are rising values, each with the colour from
    there on; the first value is None. `colours` has a colour for each legend: a stat then shows the legend in
    place of the value, and a bar of states is drawn in it. `empty` is what the panel says without data, and
    so the reason why it may have none. `minimum` None lets the axis begin anywhere.
    """

    title: str
    unit: str
    queries: Mapping[str, str]
    description: str
    kind: Kind = "timeseries"
    width: int = 8
    thresholds: Steps = ((None, GOOD),)
    colours: Mapping[str, str] = field(default_factory=dict)
    empty: str = ""
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    columns: tuple[str, ...] = ()  # of a table: the labels shown, and Value

    @property
    def expressions(self) -> dict[str, str]:
        """The expressions by legend, with the pipeline's selector."""
        return {legend: of_pipeline(expr) for legend, expr in self.queries.items()}


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard; `name` ends its file's name and its address."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


@dataclass(frozen=True)
class Annotation:
    """Vertical lines in every chart, where the expression is above 0."""

    name: str
    colour: str
    expr: str


def _grew(counter: str) -> str:
    """How much a total grew since the last point of a chart, or before a gap of up to an hour."""
    return of_pipeline(f"sum({counter}) - sum(last_over_time({counter}[1h] offset $__interval)) > 0")


_QUARANTINES = 'stoker_events_total{*,event=~"source_quarantined|checkpoint_quarantined|shard_set_damaged"}'
ANNOTATIONS = (
    Annotation("Trainer start", INFO, _grew("stoker_train_launches{*}")),
    Annotation("Rollback", WARN, _grew('stoker_events_total{*,event="rolled_back"}')),
    Annotation("Quarantine", BAD, _grew(_QUARANTINES)),
)
