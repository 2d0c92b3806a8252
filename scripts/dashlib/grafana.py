"""Grafana's dashboards from the boards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashlib.panels import ANNOTATIONS, HEIGHTS, WARN, Board, Kind, Panel, Steps

TAG = "stoker"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

Builder = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel


def text(board: Board) -> str:
    """The JSON of a dashboard."""
    return encoded(_dashboard(board).build())


def encoded(built: models.Dashboard) -> str:
    """The JSON text of the SDK's object."""
    return json.dumps(built, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _dashboard(board: Board) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(f"Stoker / {board.title}")
        .uid(f"stoker-{board.name}")
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .time("now-6h", "now")
        .refresh("30s")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Stoker")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("pipeline")
            .label("Pipeline")
            .datasource(_SOURCE)
            .query('label_values(up{job="stoker"}, pipeline)')
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
        )
    )
    for each in ANNOTATIONS:
        made.annotation(
            dashboard.AnnotationQuery()
            .name(each.name)
            .datasource(_SOURCE)
            .enable(True)
            .icon_color(each.colour)
            .expr(each.expr)
        )
    number = 0
    for row in board.rows:
        number += 1
        made.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(_panel(panel).id(number))
    return made


def _panel(panel: Panel) -> Builder:
    built = _KINDS[panel.kind](panel)
    built.title(panel.title).description(panel.description).datasource(_SOURCE)
    built.unit(panel.unit).height(HEIGHTS[panel.kind]).span(panel.width)
    if panel.empty:
        built.no_value(panel.empty)
    if panel.minimum is not None:
        built.min(panel.minimum)
    if panel.maximum is not None:
        built.max(panel.maximum)
    for number, (legend, expr) in enumerate(panel.expressions.items()):
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + number))
        if panel.kind == "table":
            query.instant().format(PromQueryFormat.TABLE)
        elif panel.kind == "stat":  # a value of earlier is not one of now
            query.instant()
        else:
            query.range()
        built.with_target(query)
    return built


def _timeseries(panel: Panel) -> Builder:
    built = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(60 if panel.stacked else 8)
        .show_points(options.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(options.TooltipDisplayMode.MULTI)
            .sort(options.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(options.LegendDisplayMode.LIST)
            .placement(options.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
    )
    if panel.stacked:
        built.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
    if len(panel.thresholds) > 1:
        built.thresholds(_thresholds(panel.thresholds))
        built.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(options.GraphTresholdsStyleMode.DASHED)
        )
    return built


def _stat(panel: Panel) -> Builder:
    built = (
        stat.Panel()
        .graph_mode(options.BigValueGraphMode.NONE)
        .color_mode(options.BigValueColorMode.VALUE)
        .text_mode(options.BigValueTextMode.NAME if panel.colours else options.BigValueTextMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(panel.thresholds))
    )
    for legend, colour in panel.colours.items():
        built.override_by_name(legend, [_fixed(colour)])
    return built


def _states(panel: Panel) -> Builder:
    built = (
        statetimeline.Panel()
        .show_value(options.VisibilityMode.NEVER)
        .row_height(0.8)
        .line_width(0)
        .fill_opacity(80)
        .merge_values(True)
        .legend(common.VizLegendOptions().show_legend(False).calcs([]))
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(_on(WARN)))
    )
    for legend, colour in panel.colours.items():
        steps = _thresholds(_on(colour)).build()
        built.override_by_name(legend, [models.DynamicConfigValue("thresholds", steps)])
    return built


def _table(panel: Panel) -> Builder:
    hidden: Mapping[str, object] = {"excludeByName": {"Time": True, "Value": "Value" not in panel.columns}}
    return (
        table.Panel()
        .show_header(False)
        .sort_by([common.TableSortByFieldState().display_name("Value").desc(True)])
        .with_transformation(models.DataTransformerConfig(id_val="organize", options=hidden))
    )


_KINDS: Mapping[Kind, Callable[[Panel], Builder]] = {
    "timeseries": _timeseries,
    "stat": _stat,
    "states": _states,
    "table": _table,
}


def _on(colour: str) -> Steps:
    return (None, "transparent"), (1, colour)


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [models.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _fixed(colour: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
