"""What `stoker describe` knows of a daemon, an event's word and an alert."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.cli.pipeline.described import Description, Question
from stoker.config.load import deploy_dir, docs_dir
from stoker.kit.event_types import event_type, event_types, filled, register
from stoker.observe.status import read_status
from stoker.observe.verdict import verdict
from stoker.store.layout import DAEMONS, TRAIN_SUPERVISOR
from stoker.supervise.outlook import gather

LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
PART = re.compile(r"\*\*(\w+)\.\*\*(.*?)(?=\n\*\*|\Z)", re.DOTALL)  # of a section of the runbook


def daemons(_: Question) -> Iterable[str]:
    return DAEMONS


def daemon(question: Question) -> Description | None:
    """Describes a daemon by its lock and its last status."""
    name = question.thing.replace("-", "_").removeprefix("stoker_")
    if name not in DAEMONS:
        return None
    pipeline = question.pipeline
    unit = f"stoker-{name.replace('_', '-')}@{pipeline.name}.service"
    journal = f"`journalctl -xu '{unit}' --since -2h` shows its journal"
    found = question.read(read_status, pipeline.layout)
    about: Mapping[str, Any] = found[name] if found else {"state": "not known", "body": {}}
    body = about["body"]
    hands = [f"{one.what}: {one.do}" for one in _hands(question, name, found or {})]
    facts = {
        "state": about["state"],
        "pid": about.get("pid"),
        "since": about.get("since"),
        "status": body.get("text"),
        "status_age_s": about["silent_s"] if body.get("time") else None,
        "exit_code": body.get("exit_code"),
        "trouble": body.get("trouble"),
        "metrics": about.get("metrics") and f"http://{about['metrics']}/metrics",
        "unit": unit,
    }
    then = (
        "" if about.get("running") else f"nothing, until `systemctl start {unit}` or `stoker run` starts it"
    )
    doing = body.get("waiting_for") or body.get("waits") or body.get("doing") or body.get("text")
    history = question.history(lambda _: True, [name])
    return Description(name, facts, then or str(doing or "it starts"), (*hands, journal), history)


def _hands(question: Question, name: str, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Yields what needs a hand of this daemon alone."""
    facts = question.read(gather, question.pipeline, found) if found else None
    if facts is not None:
        alone = {name: facts.daemons[name]} if name in facts.daemons else {}
        record = facts.record if name == TRAIN_SUPERVISOR else None
        yield from verdict(replace(facts, daemons=alone, record=record)).hands


def events(_: Question) -> Iterable[str]:
    return register()


def event(question: Question) -> Description | None:
    """Describes an event's word by its row of the register, and when it last happened here."""
    row = event_type(question.thing)
    if row is None:
        return None
    words = {row.word, *row.was}
    of = tuple(each for each in DAEMONS if row.word in event_types(each))
    history = question.history(lambda each: each.get("event") in words, of)
    last = history.events[-1] if history.events else {}
    file, name = str(question.pipeline.file), question.pipeline.name
    meaning, check, do = (
        filled(text, file, name, lambda field: str(last.get(field, f"the {field}")))
        for text in (row.meaning, row.check, row.do)
    )
    facts = {
        "level": row.level,
        "headline": row.headline,
        "meaning": meaning,
        "check": check,
        "recorded_by": list(of) or ["the log alone"],
        "last": last.get("time"),
        "in_24_h": history.in_24_h,
        "alert": row.alert,
    }
    needs = "nothing is to be done" if row.level == "info" else ""
    return Description(row.word, facts, needs, (do,) if do else (), history)


def rules() -> dict[str, list[Mapping[str, Any]]]:
    """Returns the rules of each alert by its name; several differ in severity."""
    import yaml

    found: dict[str, list[Mapping[str, Any]]] = {}
    for file in sorted((deploy_dir() / "prometheus/rules").glob("*.yml")):
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
            found.setdefault(rule["alert"], []).append(rule)
    return found


def alerts(_: Question) -> Iterable[str]:
    return rules()


def alert(question: Question) -> Description | None:
    """Describes an alert by its rules and its section of the runbook, and by the events about the same."""
    if not question.thing.startswith("Stoker") or not (found := rules().get(question.thing)):
        return None
    parts = _section(question)
    facts = {
        "symptom": parts.get("Symptom"),
        "severity": [rule["labels"]["severity"] for rule in found],
        "for": [rule.get("for", "at once") for rule in found],
        "expression": [" ".join(rule["expr"].split()) for rule in found],
        "check": parts.get("Check"),
    }
    then = f"it is over when this holds: {parts['Verify']}" if "Verify" in parts else ""
    words = {row.word for row in register().values() if row.alert == question.thing}
    do = (parts["Act"],) if "Act" in parts else ()
    history = question.history(lambda each: each.get("event") in words)
    return Description(question.thing, facts, then, do, history)


def _section(question: Question) -> dict[str, str]:
    """Returns the parts of the alert's section, each on one line, with the pipeline's file and name."""
    page = docs_dir() / "runbook.md"
    text = question.read(page.read_text, "utf-8")
    if text is None:
        question.unread.append(f"{page} is missing; it says what to do")
        return {}
    _, _, after = text.partition(f"### {question.thing}\n")
    file, name = str(question.pipeline.file), question.pipeline.name
    section = LINK.sub(r"\1", re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0])
    section = section.replace("/etc/stoker/NAME.yaml", file)
    return {
        part: " ".join(filled(words, file, name, lambda field: f"{{{field}}}").split())
        for part, words in PART.findall(section)
    }
