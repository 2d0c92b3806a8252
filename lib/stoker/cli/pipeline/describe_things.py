"""What `stoker describe` knows of each kind of things: functions from a question to its description."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from stoker.checkpoints.retention import History, candidates, counts, find_checkpoints
from stoker.cli.pipeline.described import Description, Question
from stoker.cli.runs.runs import launches_of
from stoker.config.load import deploy_dir, docs_dir
from stoker.config.schema import Pipeline
from stoker.config.units import format_duration
from stoker.corpus.quarantine.directory import QuarantineEntry, read_quarantine, refusal
from stoker.corpus.records.receipts import Receipt, read_listing
from stoker.corpus.records.sources import EXCEEDS_DISK, KEY16, PUBLISHED, Source, read_sources
from stoker.kit.event_types import event_type, register
from stoker.plan.timelines import Timelines, ancestry, read_timelines
from stoker.store.errors import UsageError
from stoker.store.layout import DAEMONS, RunLayout
from stoker.supervise.run.launch_record import Makers, read_launches
from stoker.supervise.run.step_rows import rows_at
from stoker.supervise.trainer_kind import kind_of

PART = re.compile(r"\*\*(\w+)\.\*\*(.*?)(?=\n\*\*|\Z)", re.DOTALL)  # of a section of the runbook
STEP = re.compile("[0-9]{1,12}")
KEY = re.compile("[0-9a-f]{6,64}")  # the first digits of a shard set's key
MOST_NAMED = 5  # keys of an ambiguous prefix
PLANNED, COMMITTED, MADE, BACK = "planned", "committed", "made, not proven yet", "rolled back"
DONE = "nothing: its shard set is done, and trained on where the plan has it"
THEN = {  # by the state of a step or a source: what comes next
    COMMITTED: "nothing: a proven checkpoint holds it",
    MADE: "the next proven checkpoint holds it; after a kill before that it is made again",
    BACK: "nothing: the run trains on without it",
    "seen": "the download watchdog fetches or hashes it",
    "staged": "its shard set is built when its turn comes",
    "building": "its shard set is published, then proven",
    "quarantined": "nothing by itself: somebody has to release it",
    "duplicate": "nothing: another source has the same content and its shard set",
}


def daemon(question: Question) -> Description | None:
    """Describes a daemon by its lock, its last status, and the verdict on it alone."""
    name = question.thing.replace("-", "_").removeprefix("stoker_")
    if name not in DAEMONS:
        return None
    unit = f"stoker-{name.replace('_', '-')}@{question.pipeline.name}.service"
    about, judged = question.judged(name)
    body = about.get("body", {})
    status = {"body": None, "text": body.get("text"), "exit_code": body.get("exit_code")}
    then = body.get("doing") or body.get("text") or "it starts" if about.get("running") else judged.text
    do = [f"{one.what}: {one.do}" for one in judged.hands]
    do.append(f"`journalctl -xu '{unit}' --since -2h` shows its journal")
    return Description(name, {**about, **status, "unit": unit}, [name], then, do)


def event(question: Question) -> Description | None:
    """Describes an event's word by its row of the register; its history tells when it last happened here."""
    if (row := event_type(question.thing)) is None:
        return None
    facts = {"level": row.level, "headline": row.headline, "alert": row.alert}
    facts |= {"meaning": question.filled(row.meaning), "check": question.filled(row.check)}
    return Description(row.word, facts, [row.word, *row.was], do=[question.filled(row.do) or "nothing"])


@functools.cache
def rules() -> Mapping[str, list[str]]:
    """Returns the severity and the expression of each alert by its name; several have two."""
    import yaml

    found: dict[str, list[str]] = {}
    for file in sorted((deploy_dir() / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            for rule in (rule for rule in group["rules"] if "alert" in rule):
                said = f"{rule['labels']['severity']}: {' '.join(rule['expr'].split())}"
                found.setdefault(rule["alert"], []).append(said)
    return found


def alert(question: Question) -> Description | None:
    """Describes an alert by its rules and its section of the runbook, and by the events about the same."""
    name = question.thing
    if not name.startswith("Stoker") or name not in rules():
        return None
    page = docs_dir() / "runbook.md"
    text = question.read(page, page.read_text, "utf-8") or ""
    section = text.partition(f"### {name}\n")[2].partition("\n#")[0]
    section = question.filled(section.replace("/etc/stoker/NAME.yaml", "FILE"))
    parts = {part.lower(): " ".join(words.split()) for part, words in PART.findall(section)}
    do = parts.pop("act", "")
    words = [row.word for row in register().values() if row.alert == name]
    return Description(name, {"rules": rules()[name], **parts}, words, do=[do])


def step(question: Question) -> Description | None:
    """Describes a step of the run: on which timeline it was made, by which launch, and whether it counts."""
    thing, pipeline, run = question.thing, question.pipeline, _run(question)
    if STEP.fullmatch(thing) is None:
        return None
    number, logged = int(thing), dict[int, list[dict[str, Any]]]()
    timelines = question.read(run.timelines, read_timelines, run.timelines) or Timelines()
    for one in range(timelines.current, -1, -1):
        if found := question.read(run.metrics, rows_at, run.metrics, one, number):
            logged[one] = found
    proven = question.record(lambda body: int(body["step"]), run.consumed) or 0
    horizon = kind_of(pipeline).horizon(pipeline.train) or 0
    if not logged and (question.unread or number > max(proven, horizon)):  # it may be in what is not readable
        return None
    timeline, state = standing(number, logged, ancestry(timelines), proven)
    facts = {name: value for row in logged.get(timeline, ()) for name, value in row.items()}
    checkpoints = question.read(run.checkpoints, find_checkpoints, run.checkpoints) or []
    sealed = [one.step for one in candidates(checkpoints, ancestry(timelines))]
    before = max((one for one in sealed if one < number), default=None)
    facts |= {"run": pipeline.train.run, "state": state, "timeline": timeline, "checkpoint_before": before}
    facts["checkpoint_after"] = min((one for one in sealed if one >= number), default=None)
    do, then = list[str](), THEN.get(state) or f"the run comes to it; {question.judged()[1].text}"
    if state != PLANNED:
        maker = Makers(question.log(run.launches, read_launches), timelines, timeline).of(number)
        facts["launch"] = maker and maker.launch
    if state != PLANNED and pipeline.train.follows_plan:
        do.append(f"`stoker data batch {pipeline.file} {pipeline.train.run} {number}` shows its documents")
    if before and state in (COMMITTED, MADE):
        do.append(f"`stoker rollback {pipeline.file} {before}` goes back before it")
    for fork in reversed(timelines.forks[timeline:]):
        if state == BACK and fork.from_step < number:  # the first of them gave it up
            facts["given_up_by"] = f"timeline {fork.number}, from step {fork.from_step:,}: {fork.reason}"
    return Description(thing, facts, [number], then, do)


def standing(number: int, logged: Collection[int], history: History, proven: int) -> tuple[int, str]:
    """Returns the timeline of a step that counts, else the newest that made it, and how the step stands.

    `logged` are the timelines with rows of it, newest first; `proven` is the newest proven checkpoint's step.
    """
    counting = [one for one in logged or dict(history) if counts(one, number, history)]
    if not counting:
        return next(iter(logged)), BACK
    return counting[0], COMMITTED if number <= proven else MADE if logged else PLANNED


def launch(question: Question) -> Description | None:
    """Describes a launch: what it began with, how it ended, and what followed."""
    name, found = question.thing, launches(question)
    if name not in found:
        return None
    one, later = found[name], [*found.values()][[*found].index(name) + 1 :]
    (_, judged), after = question.judged(), later[0] if later else None
    facts = {**one, "followed_by": after and after["launch"], "output": str(_run(question).output(name))}
    facts["detail"] = None if one["is_running"] else one["detail"]
    do = [remedy for kind, remedy in kind_of(question.pipeline).remedies.items() if kind == one["exit_class"]]
    do += [each.do for each in judged.hands if not after]
    then = f"{after['launch']} went on from step {after['resume_step']:,}" if after else judged.text
    return Description(name, facts, [name], then, do)


def launches(question: Question) -> dict[str, dict[str, Any]]:
    """Returns the launches by their ids, in their order, those of runs.jsonl and the last."""
    run, pipeline = _run(question), question.pipeline
    books = question.record(dict, run.goodput) or {}
    found = question.log(run.runs, lambda _: launches_of(pipeline, pipeline.train.run, books))
    return {one["launch"]: one for one in found}


def _run(question: Question) -> RunLayout:
    return question.pipeline.layout.run(question.pipeline.train.run)


def source(question: Question) -> Description | None:
    """Describes a source by its record and its receipt, or by the listing before it has any."""
    pipeline, path = question.pipeline, question.thing
    layout, dataset = pipeline.layout, pipeline.dataset.name
    found = question.record(Source.from_record, layout.source(dataset, path))
    receipt = question.record(Receipt.from_record, layout.receipt(dataset, path))
    if not found and not receipt and path not in listed(question):
        return None
    facts: dict[str, Any] = asdict(found) if found else {"state": "not taken up"}
    record = found or Source(dataset, path, 0, "")
    facts |= {"receipt": receipt and receipt.state, "file": receipt and receipt.file}
    words, of, do = [path], f"{pipeline.file} {shlex.quote(path)}", ""
    if record.key:
        words += [record.key, record.key16]
        do = f"`stoker data where {of}:0` shows which steps saw its row 0"
    elif record.state == "quarantined":
        do = f"`stoker quarantine release {of}` has it fetched, or checked, again"
    elif record.state == "duplicate":
        same = (one for one in _sources(question) if one.sha256 == record.sha256)
        facts["duplicate_of"] = next((one.path for one in same if one.state in PUBLISHED), None)
    return Description(path, facts, words, upcoming(pipeline, record, receipt), [do])


def upcoming(pipeline: Pipeline, record: Source, receipt: Receipt | None) -> str:
    """Returns what becomes of a source next, as its records have it."""
    state, again_s, release = record.state, pipeline.quarantine.revalidate, pipeline.shard.release
    if receipt and receipt.unobtainable and (state == "seen" or record.never_came):
        return "it is taken up when its content arrives, which no fetch has brought"
    if receipt and receipt.usable and state == "seen":
        return "it is staged when its turn comes"
    if state == "quarantined" and record.reason != EXCEEDS_DISK and again_s is not None:
        return f"it is checked again every {format_duration(again_s)}"
    if record.evicted or record.evicting:
        return "its shard set is on warm alone, and comes back when a run needs it"
    if state == "proven" and pipeline.warm is not None and not record.on_warm:
        return "its shard set is copied to warm"
    if (state, release) in (("proven", "after_proof"), ("synced", "after_sync")):
        return "its parquet leaves hot"
    return THEN.get(state, DONE)


def shard_set(question: Question) -> Description | None:
    """Describes the shard set whose key begins so, by its source; raises UsageError for several."""
    prefix = question.thing.lower()
    if KEY.fullmatch(prefix) is None:
        return None
    found = {one.key: one.path for one in _sources(question) if one.key and one.key.startswith(prefix)}
    if len(found) > 1:
        named = ", ".join(f"{key[:KEY16]} ({path})" for key, path in [*found.items()][:MOST_NAMED])
        raise UsageError(f"{question.thing!r} begins {len(found):,} keys: {named}; give more digits")
    return next((source(replace(question, thing=path)) for path in found.values()), None)


def quarantined(question: Question) -> Description | None:
    """Describes an entry of the quarantine by its reason, and by what its source is now."""
    pipeline, name = question.pipeline, question.thing
    if (kept := entries(question).get(name)) is None:
        return None
    record = question.record(Source.from_record, pipeline.layout.source(pipeline.dataset.name, kept.path))
    no = refusal(kept, record)
    then = upcoming(pipeline, record, None) if record and not no else f"nothing by itself: {no}"
    folder, of = pipeline.layout.quarantine / name, f"{pipeline.file} {shlex.quote(name)}"
    do = [] if no or kept.released else [f"`stoker quarantine release {of}` gives its source another try"]
    do += [f"`stoker quarantine drop {of}` deletes what is kept of it"] if kept.things else []
    facts = {"kind": kept.kind, **kept.body, "folder": str(folder), "kept_bytes": kept.bytes}
    return Description(name, facts, [name, kept.path or name, str(folder)], then, do)


def entries(question: Question) -> dict[str, QuarantineEntry]:
    """Returns what is in the quarantine by the names of its folders."""
    directory = question.pipeline.layout.quarantine
    return {one.name: one for one in question.read(directory, read_quarantine, directory) or ()}


def listed(question: Question) -> Collection[str]:
    """Returns the paths of the source as it was listed last."""
    layout = question.pipeline.layout
    listing = question.read(layout.state, read_listing, layout, question.pipeline.dataset.name)
    return listing.paths if listing else ()


def _sources(question: Question) -> Collection[Source]:
    """Returns all sources on record; notes those that are damaged."""
    layout, dataset = question.pipeline.layout, question.pipeline.dataset.name
    return (question.read(layout.sources, read_sources, layout, dataset, question.note) or {}).values()
