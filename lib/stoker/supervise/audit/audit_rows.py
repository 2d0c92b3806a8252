"""The training log against the plan: every step's row is there once, and each window was applied once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from stoker.plan.log import Plan
from stoker.plan.positions import START, Accounts, Position
from stoker.plan.timelines import Timelines, ancestry, committed, skips
from stoker.store.errors import DataError
from stoker.store.parsing import parse_json
from stoker.supervise.run.launch_log import Launched, Makers

Key = tuple[int, int]  # (timeline, step)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of metrics.jsonl; `position` and `tokens` are those after the step, None in a held-out row."""

    line: int
    timeline: int
    step: int
    tokens: int | None
    position: Position | None

    @property
    def key(self) -> Key:
        return self.timeline, self.step


@dataclass(frozen=True)
class Ground:
    """What rows are held against: plan, forks, sealed steps, windows a step, and steps a row.

    `launches` say what the global batch of each step was; `global_batch` is configured now.
    """

    plan: Plan
    timelines: Timelines
    sealed: Mapping[Key, tuple[int, Position]]  # tokens and position of proven checkpoints
    global_batch: int
    log_every: int = 1
    launches: Sequence[Launched] = ()
    _makers: dict[int, Makers] = field(default_factory=dict)

    def batch_of(self, row: Row) -> int | None:
        """The global batch of the launch that made a row's step; None where no launch is known of."""
        if row.timeline not in self._makers:
            self._makers[row.timeline] = Makers(self.launches, self.timelines, row.timeline)
        launch = self._makers[row.timeline].of(row.step)
        batch = launch.settings.get("global_batch") if launch else None
        return batch if type(batch) is int else None


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """Rows and findings; a missing file has none, a last line without its newline is still being written."""
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


def row_findings(rows: Sequence[Row], ground: Ground) -> list[str]:
    """What is wrong with the rows; each finding begins with its line."""
    findings = list(_repeated(rows))
    training = [row for row in rows if row.position is not None]
    accounts: dict[int, Accounts] = {}
    applied: dict[int, int] = {}  # line -> windows
    for row in training:
        try:
            if row.timeline not in accounts:
                accounts[row.timeline] = Accounts(ground.plan, skips(ground.timelines, row.timeline))
            findings += _against_plan(row, accounts[row.timeline], ground.sealed)
            applied[row.line] = accounts[row.timeline].applied(row.position or START)
        except DataError as problem:
            findings.append(f"line {row.line}: step {row.step}: {problem}")
    known = [row for row in training if row.line in applied]
    for timeline in sorted({row.timeline for row in known}):
        findings += _in_steps([row for row in known if row.timeline == timeline], known, applied, ground)
    findings += [
        f"line {row.line}: step {row.step}: timeline {row.timeline} is not in timelines.jsonl"
        for row in rows
        if row.position is None and row.timeline > ground.timelines.current
    ]
    return findings + list(_reach(training, ground.sealed))


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


def _against_plan(row: Row, accounts: Accounts, sealed: Mapping[Key, tuple[int, Position]]) -> Iterator[str]:
    assert row.position is not None
    tokens, where = accounts.tokens(row.position), f"line {row.line}: step {row.step}"
    if row.tokens != tokens:
        place = f"its position {row.position.as_list()} has {tokens} before it"
        yield f"{where} says {row.tokens} tokens; {place}"
    if row.key in sealed and sealed[row.key] != (row.tokens, row.position):
        tokens, position = sealed[row.key]
        mine = f"{where} stands at {row.position.as_list()} with {row.tokens} tokens"
        yield f"{mine}; its checkpoint at {position.as_list()} with {tokens}"


def _in_steps(
    rows: Sequence[Row], everyone: Sequence[Row], applied: Mapping[int, int], ground: Ground
) -> Iterator[str]:
    """One timeline's rows follow each other, at most `log_every` steps of one global batch apart."""
    step, windows = _origin(rows[0].timeline, everyone, applied, ground)
    batches: list[tuple[Row, Fraction]] = []
    for row in rows:
        if row.step == step:
            continue  # a finding already: it is there twice
        where, took, batch = (
            f"line {row.line}: step {row.step}",
            applied[row.line] - windows,
            ground.batch_of(row),
        )
        after = f"{where} is {took} windows after step {step}"
        if not step < row.step <= step + ground.log_every:
            yield f"{where} follows step {step}: rows are missing or out of order"
        if took <= 0:
            yield f"{after}: windows of an earlier step are applied twice"
        elif batch is not None and took != batch * (row.step - step):
            yield f"{after}, its launch trained on {batch} a step: some were applied twice or left out"
        elif batch is None and row.step > step:
            batches.append((row, Fraction(took, row.step - step)))
        step, windows = row.step, applied[row.line]
    yield from _lone_batches(batches, ground.global_batch)


def _lone_batches(batches: Sequence[tuple[Row, Fraction]], configured: int) -> Iterator[str]:
    """The global batch may change at a checkpoint, but then it stays; a single step that differs is wrong."""
    for i, (row, batch) in enumerate(batches):
        around = [other for _, other in (*batches[max(0, i - 1) : i], *batches[i + 1 : i + 2])]
        if batch != configured and batch not in around:
            others = f"the steps around it others, {configured} are configured"
            step = f"line {row.line}: step {row.step} applied {float(batch):g} windows a step"
            yield f"{step}, {others}: some were applied twice or left out"


def _origin(
    timeline: int, everyone: Sequence[Row], applied: Mapping[int, int], ground: Ground
) -> tuple[int, int]:
    """The step a timeline begins after, and the windows applied by then.

    It is the fork's; or an earlier one, where the checkpoint forked from was lost before it was gone on from.
    """
    if timeline == 0:
        return 0, 0
    began = [one.resume_step for one in ground.launches if one.timeline == timeline]
    step = min([ground.timelines.forks[timeline - 1].from_step, *began])
    older = committed(
        everyone, ancestry(ground.timelines, timeline)[1:], lambda row: (row.timeline, row.step, True)
    )
    before = [row for row in older if row.step == step]
    return step, applied[before[-1].line] if before else 0


def _reach(training: Sequence[Row], sealed: Mapping[Key, tuple[int, Position]]) -> Iterator[str]:
    have = {row.key for row in training}
    last: dict[int, int] = {}
    for row in training:
        last[row.timeline] = max(row.step, last.get(row.timeline, 0))
    for timeline, step in sorted(sealed):
        if (timeline, step) not in have and step > last.get(timeline, -1):
            yield f"step {step} of timeline {timeline} is sealed in a checkpoint, but has no row"
