"""Audit of the training log: every step's row exists once, and each window was applied once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.plan.log import Plan
from stoker.plan.positions import START, Accounts, Position
from stoker.plan.timelines import Timelines, ancestry, committed, skips
from stoker.store.errors import DataError
from stoker.store.record import parse_json
from stoker.supervise.run.launch_record import Launched, Makers

Key = tuple[int, int]  # (timeline, step)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of metrics.jsonl; `position` and `tokens` are those after the step, None in a held-out row."""

    line: int
    timeline: int
    step: int
    tokens: int | None
    position: Position | None

    @property
    def key(self) -> Key:
        return self.timeline, self.step


@dataclass(frozen=True)
class History:
    """The reference for rows: plan, forks, sealed steps, steps per row, and the launch of each step."""

    plan: Plan
    timelines: Timelines
    sealed: Mapping[Key, tuple[int, Position]]  # tokens and position of proven checkpoints
    launches: Sequence[Launched]


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """Returns rows and findings, none for a missing file; ignores a last line without newline."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    rows, findings = [], []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(_row(number, parse_json(line)))
        except (DataError, ValueError, KeyError, TypeError) as problem:
            findings.append(f"line {number} is no row: {problem!s}")
    return rows, findings


def row_findings(rows: Sequence[Row], history: History) -> list[str]:
    """Returns the faults of the rows; each begins with its line number."""
    findings = list(_repeated(rows))
    training = [row for row in rows if row.position is not None]
    for timeline, first in sorted({row.timeline: row for row in reversed(rows)}.items()):
        try:
            accounts = Accounts(history.plan, skips(history.timelines, timeline))
        except DataError as problem:
            findings.append(f"line {first.line}: step {first.step}: {problem}")
        else:
            findings += _on_timeline(timeline, training, accounts, history)
    return [*findings, *_reach(training, history.sealed)]


def _row(number: int, body: Any) -> Row:
    step, timeline = body["step"], body["timeline"]
    if type(step) is not int or type(timeline) is not int:
        raise ValueError("step and timeline are not whole numbers")
    if "val_loss" in body and "loss" not in body:
        return Row(number, timeline, step, None, None)
    return Row(number, timeline, step, int(body["tokens"]), Position.parse(body["position"]))


def _repeated(rows: Sequence[Row]) -> Iterator[str]:
    seen: dict[tuple[Key, bool], int] = {}
    for row in rows:
        first = seen.setdefault((row.key, row.position is None), row.line)
        if first != row.line:
            what = "evaluated" if row.position is None else "applied"
            yield f"line {row.line}: step {row.step} of timeline {row.timeline} {what} twice (line {first})"


def _on_timeline(
    timeline: int, training: Sequence[Row], accounts: Accounts, history: History
) -> Iterator[str]:
    """Checks a timeline's rows: in order, one a step, by their launch's batch."""
    makers, orphans = Makers(history.launches, history.timelines, timeline), list[int]()
    step, windows = _origin(timeline, training, accounts, history)
    for row in training:
        if row.timeline != timeline or row.position is None:
            continue
        where = f"line {row.line}: step {row.step}"
        try:
            applied = accounts.applied(row.position)
        except DataError as problem:
            yield f"{where}: {problem}"
            continue
        if row.tokens != (tokens := accounts.tokens(row.position)):
            place = f"its position {row.position.as_list()} has {tokens} before it"
            yield f"{where} says {row.tokens} tokens; {place}"
        sealed = history.sealed.get(row.key, (row.tokens, row.position))
        if sealed != (row.tokens, row.position):
            mine = f"{where} has position {row.position.as_list()} with {row.tokens} tokens"
            yield f"{mine}; its checkpoint at {sealed[1].as_list()} with {sealed[0]}"
        if row.step == step:
            continue  # reported already: the row is duplicated
        took, launch = applied - windows, makers.of(row.step)
        if launch is None:
            orphans.append(row.step)
        if row.step != step + 1:
            yield f"{where} follows step {step}: rows are missing or out of order"
        elif took <= 0:
            yield f"{where} is {took} windows after step {step}: windows are applied twice"
        elif launch is not None and took != (batch := launch.settings["global_batch"]):
            after = f"{where} is {took} windows after step {step}, its launch trained on {batch} a step"
            yield f"{after}: some were applied twice or left out"
        step, windows = row.step, applied
    if orphans and history.launches:  # else the run is older than the log of launches
        yield f"steps from {orphans[0]} on were made by no launch on record"


def _origin(timeline: int, training: Sequence[Row], accounts: Accounts, history: History) -> tuple[int, int]:
    """Returns the step a timeline begins after, and the windows applied by then.

    That is the fork's step, or an earlier one if the checkpoint forked from was lost before training
    continued.
    """
    if timeline == 0:
        return 0, 0
    began = [one.resume_step for one in history.launches if one.timeline == timeline]
    step = min([history.timelines.forks[timeline - 1].from_step, *began])
    ways = ancestry(history.timelines, timeline)[1:]
    older = committed(training, ways, lambda row: (*row.key, True))
    position = next((row.position for row in older if row.step == step), None) or START
    with contextlib.suppress(DataError):  # beyond the plan: reported at its row
        return step, accounts.applied(position)
    return step, 0


def _reach(training: Sequence[Row], sealed: Mapping[Key, tuple[int, Position]]) -> Iterator[str]:
    have = {row.key for row in training}
    last: dict[int, int] = {}
    for row in training:
        last[row.timeline] = max(row.step, last.get(row.timeline, 0))
    for timeline, step in sorted(sealed):
        if (timeline, step) not in have and step > last.get(timeline, -1):
            yield f"step {step} of timeline {timeline} is sealed in a checkpoint, but has no row"
