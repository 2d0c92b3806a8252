"""Each alert fires where it must, with its words, and is silent where it nearly fires."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import data_alert_cases
import gpu_alert_cases
import pipeline_alert_cases
import pytest
import training_alert_cases
import yaml
from alert_case import DAEMONS, Case, Series

from support.prometheus import DEPLOY, needs_prometheus

pytestmark = needs_prometheus

OF_FILE = {
    "stoker-data": data_alert_cases.CASES,
    "stoker-gpu": gpu_alert_cases.CASES,
    "stoker-pipeline": pipeline_alert_cases.CASES,
    "stoker-training": training_alert_cases.CASES,
}
CASES = tuple(case for cases in OF_FILE.values() for case in cases)
RECORDING = DEPLOY / "rules" / "stoker-recording.yml"
GROUPS = {file: yaml.safe_load(file.read_text())["groups"] for file in sorted(RECORDING.parent.glob("*.yml"))}
ALERTS = {
    file: [rule for group in GROUPS[file] for rule in group["rules"]] for file in GROUPS if file != RECORDING
}


def rules_of(case: Case, rules: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    named = [rule for rule in rules if rule["alert"] == case.name]
    return [rule for rule in named if not case.severities or rule["labels"]["severity"] in case.severities]


def origin(name: str) -> dict[str, str]:
    return {"job": "stoker", "instance": f"{name}:1", "pipeline": "p", "daemon": DAEMONS[name]}


def written_out(series: Series) -> list[dict[str, str]]:
    """The series as promtool takes them."""
    found = []
    for shown, values in series.items():
        name, _, metric = shown.partition(":")
        if name in DAEMONS:
            own = ",".join(f'{label}="{value}"' for label, value in origin(name).items())
            metric = metric.replace("{", f"{{{own},") if "{" in metric else f"{metric}{{{own}}}"
        found.append({"series": metric if name in DAEMONS else shown, "values": spelled_out(values)})
    return found


def spelled_out(values: str) -> str:
    """The values with each NaN written: promtool repeats numbers alone."""
    return re.sub(r"NaNx(\d+)", lambda found: " ".join(["NaN"] * int(found[1])), values)


def expected(case: Case, rule: Mapping[str, Any]) -> dict[str, Any]:
    """The alert with every label and annotation."""
    names = (shown.partition(":")[0] for shown in case.series)
    of = origin(next((name for name in names if name in DAEMONS), "shard"))
    labels = {label: of[label] for label in case.by.split()}
    words = {**rule["annotations"], "summary": case.says}
    return {"exp_labels": {**labels, **case.more, **rule["labels"]}, "exp_annotations": words}


def trials(case: Case, rules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def trial(series: Series, alerts: list[dict[str, Any]]) -> dict[str, Any]:
        asked = {"eval_time": f"{case.at_min}m", "alertname": case.name, "exp_alerts": alerts}
        return {
            "interval": f"{case.every_min}m",
            "input_series": written_out(series),
            "alert_rule_test": [asked],
        }

    fires = trial(case.series, [expected(case, rule) for rule in rules])
    return [fires, *(trial({**case.series, **change}, []) for change in case.but)]


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    rules = [rule for found in ALERTS.values() for rule in found]
    shown = {(case.name, rule["labels"]["severity"]) for case in CASES for rule in rules_of(case, rules)}
    assert shown == {(rule["alert"], rule["labels"]["severity"]) for rule in rules}
    assert {case.name for case in CASES} - {case.name for case in CASES if case.but} == {"StokerWatchdog"}


def rules_asked_for(name: str, rules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules of an alert after those that record what they ask for: no others cost time."""
    recorded = [rule for group in GROUPS[RECORDING] for rule in group["rules"]]
    found = [rule for rule in rules if rule["alert"] == name]
    for rule in reversed(recorded):
        if any(rule["record"] in each["expr"] for each in found):
            found.insert(0, rule)
    return found


@pytest.mark.parametrize("file", ALERTS, ids=lambda file: file.stem)
def test_each_alert_fires_with_its_words_and_is_silent_where_it_nearly_does(
    file: Path, tmp_path: Path
) -> None:
    tests = []
    for number, case in enumerate(OF_FILE[file.stem]):
        rules, test = tmp_path / f"{number}.rules", tmp_path / f"{number}.json"
        group = {"name": case.name, "rules": rules_asked_for(case.name, ALERTS[file])}
        rules.write_text(json.dumps({"groups": [group]}))
        content = {
            "rule_files": [str(rules)],
            "evaluation_interval": f"{case.every_min}m",
            "tests": trials(case, rules_of(case, ALERTS[file])),
        }
        test.write_text(json.dumps(content))
        tests.append(test)
    done = subprocess.run(["promtool", "test", "rules", *tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_pass_every_lint() -> None:
    command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *GROUPS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
