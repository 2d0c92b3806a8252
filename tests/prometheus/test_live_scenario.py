"""A real pipeline with faults under a real Prometheus with the shipped rules."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.live_scenario import FAULTS
from support.prometheus import needs_prometheus

pytestmark = needs_prometheus


def test_every_rule_is_evaluated_without_an_error(live: Any) -> None:
    assert len(live.rules) > 40
    assert {(rule["health"], rule.get("lastError", "")) for rule in live.rules} == {("ok", "")}


def test_the_alerts_of_the_faults_fire_and_no_other_does(live: Any) -> None:
    fired = {rule["name"] for rule in live.rules if rule["type"] == "alerting" and rule["state"] == "firing"}
    assert fired == {"StokerWatchdog", "StokerQuarantineGrowing"}


@pytest.mark.parametrize("expr", FAULTS)
def test_prometheus_kept_each_fault(live: Any, expr: str) -> None:
    assert live.prometheus.query(expr, at=live.ended)


def test_each_series_has_one_pipeline_and_one_daemon(live: Any) -> None:
    assert not live.prometheus.query('{__name__=~".+",exported_pipeline=~".+"}')
    assert not live.prometheus.query('{__name__=~".+",exported_daemon=~".+"}')
    assert not live.prometheus.query('{__name__=~"stoker_.+",pipeline=""}')


def test_a_series_that_a_rule_asks_for_is_there_from_the_start(live: Any) -> None:
    """Its counters are born at 0: no increase is missed."""
    first = live.prometheus.query("stoker_events_total", at=live.began + 2)
    last = live.prometheus.query("stoker_events_total", at=live.ended)
    assert {str(each["metric"]) for each in first} == {str(each["metric"]) for each in last}


def test_the_rules_ask_for_metrics_that_are_there(live: Any) -> None:
    asked = {name for rule in live.rules for name in re.findall(r"(?<![:\w])stoker_\w+", rule["query"])}
    absent = re.compile(r"stoker_(gpu|eval)_")  # this machine may have no cards; nothing is evaluated
    assert {name for name in asked if not absent.match(name)} <= set(live.names)
