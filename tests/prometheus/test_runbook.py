"""Rules, runbook and product name the same alerts, metrics, events and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import yaml
from prometheus_client.parser import text_string_to_metric_families

from stoker.cli.main import cli
from stoker.kit.event_types import event_types, register
from stoker.kit.metrics import Metrics
from stoker.store.layout import DAEMONS, DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stokerd.download.loop import FIGURES as DOWNLOAD
from stokerd.sharding.status import FIGURES as SHARD
from stokerd.supervision.run import Timings
from stokerd.supervision.status import FIGURES as TRAIN
from support.manual import commands

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
RULES = [
    rule
    for file in sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
# They say all without a number: what they compare is 0 or 1.
WITHOUT_NUMBER = {"StokerWatchdog", "StokerDaemonDown", "StokerSourceAway"}


FIGURES = {DOWNLOAD_WATCHDOG: DOWNLOAD, STAGE_SHARD: SHARD, TRAIN_SUPERVISOR: TRAIN}


def exported() -> Iterator[str]:
    """The names of all samples on the pages of the three daemons."""
    for daemon, figures in FIGURES.items():
        metrics = Metrics(daemon)
        metrics.figures = figures
        if daemon == TRAIN_SUPERVISOR:
            Timings(metrics)
        yield from (f"stoker_{figure.name}" for figure in figures)
        for family in text_string_to_metric_families(metrics.text().decode()):
            yield from (sample.name for sample in family.samples)


# What the help of a metric says of its unit, by the end of its name; the first that fits.
UNITS = {
    "_timestamp_seconds": "^Unix time (at|since) which ",
    "_start_time_seconds": "^Unix time at which ",
    "_clock_seconds": "^Unix time of ",
    "_per_second": "each second",
    "_seconds": "[Ss]econds",
    "_bytes": "[Bb]ytes|^Peak device bytes",
    "_ratio": "^Share of ",
    "_celsius": "Celsius",
    "_watts": "Watts",
    "_joules": "Joules",
    "_hertz": "Hertz",
}


def test_the_help_of_each_metric_names_its_subject_and_its_unit() -> None:
    for daemon, figures in FIGURES.items():
        metrics = Metrics(daemon)
        metrics.figures = figures
        if daemon == TRAIN_SUPERVISOR:
            Timings(metrics)
        for family in text_string_to_metric_families(metrics.text().decode()):
            name, text = family.name, family.documentation
            unit = next((words for end, words in UNITS.items() if name.endswith(end)), "")
            assert re.search(unit, text), f"{name}: {text!r} does not name its unit"
            assert not re.match("(Since when|When|Its?|They) ", text), (
                f"{name}: {text!r} does not name its subject"
            )


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    sections = re.split(r"^### ", RUNBOOK, flags=re.MULTILINE)[1:]
    titles = [section.split("\n", 1)[0] for section in sections]
    assert sorted(titles) == sorted({rule["alert"] for rule in ALERTS})
    for section in sections:
        assert re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE) == ["Symptom", "Check", "Act", "Verify"]


def test_each_alert_says_how_bad_how_much_and_where_to_read_on() -> None:
    assert len({rule["alert"] for rule in ALERTS}) >= 25
    for rule in ALERTS:
        name, words = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert ("$value" in words["summary"]) is (name not in WITHOUT_NUMBER), name
        assert words["runbook_url"] == f"file:///opt/stoker/docs/runbook.md#{name.lower()}"
        assert words["description"], name


def test_rules_and_runbook_name_metrics_that_the_daemons_export() -> None:
    known = {*exported(), *(rule["record"] for rule in RULES if "record" in rule)}
    for text in (*(rule["expr"] for rule in RULES), RUNBOOK):
        for name in re.findall(r"\b(?:\w+:)?stoker_\w+(?::\w+)?", text):
            assert {name, f"{name}_count"} & known, name


def test_rules_ask_for_values_of_labels_that_there_are() -> None:
    labels = {f"stoker_{figure.name}": figure.labels for figures in FIGURES.values() for figure in figures}
    for rule in RULES:
        for name, matchers in re.findall(r"(stoker_\w+)\{(.+?)\}", rule["expr"]):
            for label, values in re.findall(r'(\w+)[=!]~?"([^"]+)"', matchers):
                known = labels.get(name, {}).get(label)
                for value in values.split("|") if known else ():
                    assert any(re.fullmatch(value, each) for each in known), f"{name}{{{label}={value}}}"


def test_the_runbook_names_events_that_the_daemons_record() -> None:
    known = {word for daemon in DAEMONS for word in event_types(daemon)}
    listed = re.findall(r"[Ee]vents? ((?:`\w+`(?:, | and | or )?)+)", RUNBOOK)
    named = {word for each in listed for word in re.findall(r"`(\w+)`", each)}
    assert len(named) > 20
    assert named <= known
    for rule in RULES:
        for words in re.findall(r'event=~?"([^"]+)"', rule["expr"]):
            assert set(words.split("|")) <= known


def test_the_register_and_the_runbook_tell_the_same_act() -> None:
    acts = dict(re.findall(r"^### (\w+)\n.*?^\*\*Act\.\*\* (.*?)^\*\*Verify", RUNBOOK, re.M | re.S))
    for name, word in register().items():
        if word.alert:
            act = " ".join(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", acts[word.alert]).split())
            assert word.do.rstrip(".") in act.replace("/etc/stoker/NAME.yaml", "FILE"), (
                f"{name} and {word.alert}"
            )
    told = {word.alert for word in register().values()}
    for title, text in re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", RUNBOOK, re.M | re.S):
        check = text.split("**Check.**")[1].split("**Act.**")[0]
        named = {word for word in re.findall(r"`(\w+)`", check) if word in register()}
        assert title in told or not any(register()[word].alert == "" for word in named), f"{title}: {named}"


def test_the_manual_and_the_register_name_commands_and_options_that_exist() -> None:
    lines = [line for line in commands() if line.startswith("stoker ")]
    assert len(lines) > 60
    for line in lines:
        nodes: list[click.Command] = [cli]
        words = line.replace("[", " ").replace("]", " ").split(" -- ")[0].split()[1:]
        while words and all(isinstance(node, click.Group) for node in nodes):
            names = words.pop(0).split("|")  # a row of a table has them all
            found = [node.get_command(click.Context(cli), name) for node in nodes for name in names]  # type: ignore[attr-defined]
            assert None not in found, line
            nodes = [node for node in found if node is not None]
        options = {option for node in nodes for parameter in node.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--") and "{" not in line} <= options, line
