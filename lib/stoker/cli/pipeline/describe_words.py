"""What `stoker describe` knows of a daemon, an event's word and an alert."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.cli.pipeline.described import Description, Question
from stoker.config.load import deploy_dir, docs_dir
from stoker.kit.event_types import event_type, event_types, filled, register
from stoker.store.layout import DAEMONS

OF_LOCK, OF_STATUS = ("state", "pid", "since", "metrics"), ("text", "exit_code", "trouble", "waiting_for")
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
PART = re.compile(r"\*\*(\w+)\.\*\*(.*?)(?=\n\*\*|\Z)", re.DOTALL)  # of a section of the runbook


def daemon(question: Question) -> Description | None:
    """Describes a daemon by its lock, its last status, and the verdict on it alone."""
    name = question.thing.replace("-", "_").removeprefix("stoker_")
    if name not in DAEMONS:
        return None
    unit = f"stoker-{name.replace('_', '-')}@{question.pipeline.name}.service"
    about = question.facts.daemons.get(name, {}) if question.facts else {}
    body = about.get("body", {})
    facts = {key: about.get(key) for key in OF_LOCK} | {key: body.get(key) for key in OF_STATUS}
    facts |= {"status_age_s": about.get("silent_s") if "time" in body else None, "unit": unit}
    judged, history = question.judged(name), question.history(lambda _: True, [name])
    doing = body.get("waiting_for") or body.get("doing") or body.get("text") or "it starts"
    hands = [f"{one.what}: {one.do}" for one in judged.hands]
    journal = f"`journalctl -xu '{unit}' --since -2h` shows its journal"
    then = str(doing) if about.get("running") else judged.text
    return Description(name, facts, then, (*hands, journal), history)


def event(question: Question) -> Description | None:
    """Describes an event's word by its row of the register, and when it last happened here."""
    row = event_type(question.thing)
    if row is None:
        return None
    words, of = {row.word, *row.was}, [each for each in DAEMONS if row.word in event_types(each)]
    history = question.history(lambda each: each.get("event") in words, of)
    last: Mapping[str, Any] = history.events[-1] if history.events else {}
    meaning, check, do = (
        _filled(question, text, lambda field: str(last.get(field, f"the {field}")))
        for text in (row.meaning, row.check, row.do)
    )
    facts: dict[str, Any] = {"level": row.level, "headline": row.headline, "meaning": meaning, "check": check}
    facts |= {"last": last.get("time"), "in_24_h": history.in_24_h, "daemons": of, "alert": row.alert}
    return Description(row.word, facts, do=(do or "nothing: it needs no action",), history=history)


@functools.cache
def rules() -> dict[str, list[Mapping[str, Any]]]:
    """Returns the rules of each alert by its name; several differ in severity."""
    import yaml

    found: dict[str, list[Mapping[str, Any]]] = {}
    for file in sorted((deploy_dir() / "prometheus/rules").glob("*.yml")):
        groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
            found.setdefault(rule["alert"], []).append(rule)
    return found


def alert(question: Question) -> Description | None:
    """Describes an alert by its rules and its section of the runbook, and by the events about the same."""
    if not question.thing.startswith("Stoker") or not (found := rules().get(question.thing)):
        return None
    facts: dict[str, Any] = {"severity": [rule["labels"]["severity"] for rule in found]}
    facts["expression"] = [" ".join(rule["expr"].split()) for rule in found]
    facts["for"] = [rule["for"] for rule in found if "for" in rule]
    parts = _section(question)
    facts |= {part.lower(): parts.get(part) for part in ("Symptom", "Check")}
    words = {row.word for row in register().values() if row.alert == question.thing}
    history = question.history(lambda each: each.get("event") in words)
    over = f"it is over when this holds: {parts['Verify']}" if "Verify" in parts else ""
    return Description(question.thing, facts, over, (parts["Act"],) if "Act" in parts else (), history)


def _section(question: Question) -> dict[str, str]:
    """Returns the parts of the alert's section, each on one line, with the pipeline's file and name."""
    page = docs_dir() / "runbook.md"
    text = question.read(page.read_text, "utf-8")
    if text is None:
        question.unread.append(f"{page} is missing; it says what to do")
        return {}
    after = text.partition(f"### {question.thing}\n")[2]
    section = LINK.sub(r"\1", re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0])
    section = section.replace("/etc/stoker/NAME.yaml", "FILE")
    parts = {part: " ".join(words.split()) for part, words in PART.findall(section)}
    return {part: _filled(question, words, "{{{}}}".format) for part, words in parts.items()}


def _filled(question: Question, text: str, field: Any) -> str:
    return filled(text, str(question.pipeline.file), question.pipeline.name, field)


def names(_: Question) -> Iterable[str]:
    """Returns the names of daemons, events and alerts."""
    return (*DAEMONS, *register(), *rules())
