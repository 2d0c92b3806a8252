"""Rollbacks and launches against what else is on disk: forks, what lies past them, who made which step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stoker.checkpoints.format import CheckpointBody
from stoker.checkpoints.select import counts
from stoker.plan.log import Plan
from stoker.plan.positions import START, linear
from stoker.plan.timelines import Timelines, ancestry, committed
from stoker.store.errors import DataError
from stoker.store.layout import RunLayout
from stoker.supervise.audit.audit_rows import Row
from stoker.supervise.run.launch_log import Launched


def fork_findings(layout: RunLayout, rows: Sequence[Row], plan: Plan, timelines: Timelines) -> Iterator[str]:
    """What a rollback skips lies ahead of the step it goes back to: behind it, it is trained on already."""
    for fork in timelines.forks:
        history = ancestry(timelines, fork.parent)
        trained = committed(rows, history, lambda row: (*row.key, True))
        place = next((row.position for row in trained if row.step == fork.from_step and row.position), START)
        try:
            done = linear(plan, place)
            behind = [first for first, _ in fork.skip if linear(plan, first) < done]
        except DataError:
            continue  # a position beyond the plan: a finding of its row, or of the checkpoint that has it
        for first in behind:
            skips = f"timeline {fork.number} skips windows from {first.as_list()}"
            yield f"{layout.timelines}: {skips}, which step {fork.from_step} has trained on already"


def unfinished_findings(
    layout: RunLayout, proven: Mapping[str, CheckpointBody], timelines: Timelines
) -> Iterator[str]:
    """Checkpoints that a rollback gave up, and that were not moved away: it was interrupted."""
    history = ancestry(timelines)
    for name, body in proven.items():
        if body.timeline <= timelines.current and not counts(body.timeline, body.step, history):
            past = f"lies past the fork of timeline {timelines.current}"
            yield f"{layout.checkpoints / name}: {past}; the next start of the supervisor finishes it"


def launch_findings(
    layout: RunLayout, timelines: Timelines, launches: Sequence[Launched], damage: Sequence[str]
) -> Iterator[str]:
    """The log of launches knows no timeline that is not there."""
    yield from (f"{layout.launches}: {finding}" for finding in damage)
    for one in launches:
        if one.timeline > timelines.current:
            ends = f"timelines.jsonl ends at {timelines.current}"
            yield f"{layout.launches}: launch {one.launch} is of timeline {one.timeline}, {ends}"
