"""Audit of a run: plan, checkpoints, training log and run record, recounted from disk.

Reads only; a pipeline that has not begun to train gives no findings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY, CheckpointBody
from stoker.checkpoints.proof import Proof, prove_checkpoint
from stoker.checkpoints.quarantine import quarantined
from stoker.checkpoints.retention import counts, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, read_pin
from stoker.corpus.records.sources import PUBLISHED, read_sources, tokens_of
from stoker.plan.consumption import Holdings, consumed_body
from stoker.plan.log import Closed, Plan, Segment, read_plan, segment_key
from stoker.plan.positions import START, Accounts, Books, Position, books, left_after
from stoker.plan.timelines import Timelines, ancestry, read_timelines, skips
from stoker.store.errors import DataError
from stoker.store.layout import RunLayout
from stoker.store.log import GENESIS
from stoker.store.record import read_record
from stoker.supervise.audit import audit_identity as identity
from stoker.supervise.audit.audit_rows import History, read_rows, row_findings
from stoker.supervise.run.launch_record import read_launches
from stoker.supervise.run.record import parse_record
from stoker.supervise.trainer_kind import kind_of

MOST_ROW_FINDINGS = 20  # a wrong row causes findings in later rows
NO_PLAN = Plan((), GENESIS)
T = TypeVar("T")


@dataclass(frozen=True)
class RunAudit:
    """The plan's books at the newest proven checkpoint, the checkpoint counts, and the findings."""

    plan: Books
    entries: int
    checkpoints: Mapping[str, int]
    findings: tuple[str, ...]
    on_record: tuple[str, ...]

    def figures(self) -> dict[str, dict[str, int]]:
        """Returns the run's part of `stoker audit --json`."""
        names = ("windows", "applied", "skipped", "remainder", "ahead", "tail_tokens")
        plan = {"entries": self.entries, **{name: getattr(self.plan, name) for name in names}}
        return {"plan": plan, "checkpoints": dict(self.checkpoints)}


def audit_run(pipeline: Pipeline, *, deep: bool = False) -> RunAudit:
    """Recounts a pipeline's run; with `deep` every byte of every checkpoint is read.

    Without `deep` checkpoints are proven by their lists, sizes and small files. A finding counts if a second
    pass has it in the same words: files that change during a pass give no false finding. So the words of a
    finding hold no count that grows while the run trains.
    """
    layout = pipeline.layout.run(pipeline.train.run)
    first = _look(pipeline, layout, deep)
    if not first.findings:
        return first
    again = _look(pipeline, layout, deep)
    return replace(again, findings=tuple(one for one in again.findings if one in first.findings))


def _look(pipeline: Pipeline, layout: RunLayout, deep: bool) -> RunAudit:
    # Files that the trainer writes are read before the plan, which is always ahead of them.
    proofs = _proofs(layout, deep)
    rows, damaged_rows = read_rows(layout.metrics)
    view = _View(pipeline, layout)
    proven: dict[str, CheckpointBody] = {}
    view.add(layout.metrics, damaged_rows if view.follows_plan else ())
    for name, proof in proofs.items():
        if proof.body is not None:
            proven[name] = proof.body
        if proof.verdict != "proven":
            view.add(layout.checkpoints / name, [f"{proof.verdict}: {proof.reason}"])
        view.findings += [
            f"{layout.checkpoints / name / extra}: in no list of this checkpoint" for extra in proof.extra
        ]
    view.findings += identity.run_findings(layout, view.record, view.pin if view.follows_plan else None)
    view.findings += _plan_findings(view)
    view.findings += identity.unfinished_findings(layout, proven, view.timelines)
    launches, damage = read_launches(layout.launches)
    view.findings += identity.launch_findings(layout, view.timelines, launches, damage)
    for name, body in proven.items():
        where = layout.checkpoints / name
        wrong = list(_checkpoint_findings(where, body, view))
        if where.exists():  # else pruned meanwhile
            view.add(where, wrong)
    sealed = {(body.timeline, body.step): (body.tokens, Position(*body.position)) for body in proven.values()}
    history = History(view.plan, view.timelines, sealed, launches)
    wrong = row_findings(rows, history) if view.follows_plan else []  # its rows hold what it told
    if len(wrong) > MOST_ROW_FINDINGS:
        wrong[MOST_ROW_FINDINGS:] = [f"more findings than these {MOST_ROW_FINDINGS}"]
    view.add(layout.metrics, wrong)
    newest = _newest(proven, view.timelines)
    view.findings += _record_findings(newest, proven, view)
    copies, mirror_findings = identity.audit_mirror(pipeline, view.record, deep=deep)
    counts = {
        "proven": len(proven),
        "quarantined": len(quarantined(pipeline.layout.quarantine)),
        "abandoned": sum(1 for _ in layout.abandoned.glob("t*/step-*")),
        "mirrored": copies,
    }
    account = _books(proven[newest] if newest else None, view)
    findings = (*view.findings, *mirror_findings)
    on_record = ("checkpoint mirror",) if copies and not deep else ()
    return RunAudit(account, len(view.plan.entries), counts, findings, on_record)


class _View:
    """The run by its state directory; an unreadable file becomes a finding, and is empty here."""

    def __init__(self, pipeline: Pipeline, layout: RunLayout) -> None:
        self.layout = layout
        self.findings: list[str] = []
        self.timelines = self._read(lambda: read_timelines(layout.timelines), Timelines())
        self.plan = self._read(lambda: read_plan(layout.plan), NO_PLAN)
        # After the plan: a set's record is written before an entry names the set.
        nothing = dict[str, Any]()
        launch = self._read(lambda: read_record(layout.launch), nothing)
        self.consumed = self._read(lambda: read_record(layout.consumed), nothing)
        self.sources = read_sources(pipeline.layout, pipeline.dataset.name)
        self.record = self._read(lambda: parse_record(read_record(layout.record), layout.record), None)
        self.follows_plan = kind_of(pipeline).follows_plan  # else it has neither plan nor tokens on record
        self.pin: DatasetPin | None = None
        with contextlib.suppress(DataError):  # the data audit reports it
            self.pin = read_pin(pipeline.layout, pipeline.dataset.name)
        self.horizon = int(launch.get("steps") or pipeline.train.horizon)
        phases = pipeline.train.settings  # one that the launch ended before needs a batch of its own
        following = [one.global_batch for one in phases if one.start == launch.get("until")]
        self.global_batch = max([int(launch.get("global_batch", pipeline.train.global_batch)), *following])
        is_finished = self.record is not None and self.record.state == "finished"
        self.finished = self.record.finished if self.record is not None and is_finished else None

    def add(self, where: Path, findings: Iterable[str]) -> None:
        """Adds findings about one file."""
        self.findings += [f"{where}: {finding}" for finding in findings]

    def _read(self, read: Callable[[], T], missing: T) -> T:
        try:
            return read()
        except DataError as problem:
            self.findings.append(str(problem))
        except FileNotFoundError:
            pass
        return missing


def _proofs(layout: RunLayout, deep: bool) -> dict[str, Proof]:
    proofs = {}
    for found in sorted(find_checkpoints(layout.checkpoints), key=lambda one: one.step):
        proof = prove_checkpoint(found.path, deep=deep)
        if proof.verdict == "unreadable" and not found.path.exists():
            continue  # pruned meanwhile
        proofs[found.path.name] = proof
    return proofs


def _plan_findings(view: _View) -> Iterator[str]:
    """Checks that each set is planned once an epoch, has a source record, and gives the planned windows."""
    known = {
        source.key: source for source in view.sources.values() if source.key and source.state in PUBLISHED
    }
    given_up = {fork.lost for fork in view.timelines.forks}
    named: dict[tuple[int, str], tuple[int, int]] = {}
    tokens = {key: tokens_of(source.books, "train") for key, source in known.items()}
    found = {key: count for key, count in tokens.items() if key not in given_up}
    spans = [entry for entry in view.plan.entries if isinstance(entry, Segment | Closed)]
    for last, after in pairwise(spans):
        if gap := _gap(last, after, found):
            yield f"{view.layout.plan}: entry {after.n}: {gap}"
    epoch = 0
    for entry in view.plan.segments:
        where = f"{view.layout.plan}: entry {entry.n}"
        if entry.epoch not in (epoch, epoch + 1):
            yield f"{where}: epoch {entry.epoch} follows epoch {epoch}"
        epoch = entry.epoch
        if view.record is not None and entry.key != segment_key(view.record.identity.seed, entry.n):
            yield f"{where}: its key is not that of the run's seed"
        for number, (key, manifest) in enumerate(entry.sets):
            first = named.setdefault((entry.epoch, key), (entry.n, number))
            if first != (entry.n, number):
                again = f"names set {key[:16]} again in epoch {entry.epoch}, first in entry {first[0]}"
                yield f"{where}: {again}: its windows would be applied twice"
            source = known.get(key)
            if source is None and key not in given_up:
                yield f"{where}: names set {key[:16]}, which no published source record has"
            elif source is not None and source.manifest_sha256 != manifest:
                mine, its = manifest[:16], str(source.manifest_sha256)[:16]
                yield f"{where}: set {key[:16]} has manifest sha256 {mine}, the record of {source.path} {its}"
        if entry.dataset:  # the next part goes on in this set
            del named[entry.epoch, entry.sets[-1][0]]
        if all(key in known for key, _ in entry.sets):
            misfit = entry.misfit([tokens[key] for key, _ in entry.sets])
            yield from [f"{where}: {misfit}"] if misfit else []


def _gap(last: Segment | Closed, after: Segment | Closed, tokens: Mapping[str, int]) -> str:
    """Returns how an entry does not go on where a part ended; "" if it does, or where a set of it is lost."""
    counts = [tokens[key] for key, _ in getattr(last, "sets", ()) if key in tokens]
    if isinstance(last, Closed) or not last.dataset or len(counts) < len(last.sets):
        return ""
    stop = last.stop - sum(counts[:-1])
    if isinstance(after, Closed):
        left = counts[-1] - stop
        its = f"it closes an epoch with {after.tail_tokens} tail tokens, the books of its sets leave {left}"
        return "" if after.tail_tokens == left else its
    its = f"it begins at token {after.first} of set {after.sets[0][0][:16]}, the part before it ended at "
    is_next = (after.sets[0][0], after.first) == (last.sets[-1][0], stop)
    return "" if is_next else f"{its}token {stop} of {last.sets[-1][0][:16]}"


def _checkpoint_findings(directory: Path, body: CheckpointBody, view: _View) -> Iterator[str]:
    """Checks a proven checkpoint's position, tokens and copies against the run's plan and timelines."""
    if view.record is not None:
        yield from identity.checkpoint_identity_findings(body, view.record)
    try:
        copy, forks = read_plan(directory / PLAN_COPY), read_timelines(directory / TIMELINES_COPY)
        tokens = Accounts(view.plan, skips(view.timelines, body.timeline)).tokens(Position(*body.position))
        Accounts(copy).tokens(Position(*body.position))
    except DataError as problem:
        yield str(problem)
        return
    if copy.hashes != view.plan.hashes[: len(copy.hashes)]:
        yield f"its {PLAN_COPY} is no prefix of the run's plan"
    if copy.head != body.plan_head:
        yield f"plan_head is {body.plan_head[:16]}, its {PLAN_COPY} ends at {copy.head[:16]}"
    if forks.hashes != view.timelines.hashes[: len(forks.hashes)]:
        yield f"its {TIMELINES_COPY} is no prefix of the run's timelines"
    if tokens != body.tokens and view.follows_plan:
        yield f"tokens={body.tokens}, but position {list(body.position)} has {tokens} before it"


def _newest(proven: Mapping[str, CheckpointBody], timelines: Timelines) -> str | None:
    """Returns the newest proven checkpoint on the run's current history."""
    history = ancestry(timelines)
    usable = [name for name, body in proven.items() if counts(body.timeline, body.step, history)]
    return max(usable, key=lambda name: proven[name].step, default=None)


def _record_findings(newest: str | None, proven: Mapping[str, CheckpointBody], view: _View) -> Iterator[str]:
    """Checks run.json and consumed.json against the checkpoints."""
    layout, consumed = view.layout, view.consumed.get("checkpoint")
    step = proven[newest].step if newest else 0
    position = Position(*proven[newest].position) if newest else START
    if newest and not layout.record.exists():
        yield f"{layout.record}: missing, but {newest} was made by the run"
    # The supervisor writes consumed.json shortly after a checkpoint is sealed.
    if newest and view.finished and not layout.consumed.exists():
        yield f"{layout.consumed}: missing, but the run is finished"
    elif newest and view.finished and view.consumed and consumed != newest:
        yield f"{layout.consumed}: checkpoint is {consumed}, the newest proven one {newest}"
    if view.finished == "steps" and step < view.horizon:
        at = f"finished at step {view.horizon}, the newest proven checkpoint is step {step}"
        yield f"{layout.record}: {at}"
    try:
        if view.finished == "data_exhausted":
            left = left_after(view.plan, position, skips(view.timelines))
            if not view.plan.ended or left >= view.global_batch:
                yield f"{layout.record}: finished for want of data, but {left} windows are left"
        yield from _consumed_findings(proven, view)
    except DataError as problem:
        yield f"{layout.root}: {problem}"


def _consumed_findings(proven: Mapping[str, CheckpointBody], view: _View) -> Iterator[str]:
    """Checks consumed.json against its checkpoint; skipped if that was pruned or quarantined since."""
    name = str(view.consumed.get("checkpoint"))
    if (body := proven.get(name)) is None:
        return
    run = Holdings(view.layout.root.name, view.plan, finished=view.finished)
    wanted = consumed_body(run, name, body.raw, skips(view.timelines, body.timeline))
    fields = ["run", "step", "position", "tokens", "applied"]
    if view.finished:  # on an unfinished run the plan, and so its books, may have grown since
        fields += ["skipped", "remainder", "tail_tokens"]
    for field in fields:
        if (value := view.consumed.get(field)) != wanted[field]:
            yield f"{view.layout.consumed}: {field} is {value}, recounted {wanted[field]}"


def _books(newest: CheckpointBody | None, view: _View) -> Books:
    position = Position(*newest.position) if newest else START
    exhausted = view.finished == "data_exhausted"
    try:
        return books(view.plan, position, skips(view.timelines), exhausted=exhausted)
    except DataError:  # reported already: the checkpoint's position is not in the plan
        return books(view.plan, START)
