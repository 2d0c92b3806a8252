"""Rollbacks and launches against what else is on disk: forks, what lies past them, who made which step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stoker.checkpoints.format import CheckpointBody
from stoker.checkpoints.select import counts
from stoker.plan.timelines import Timelines, ancestry
from stoker.store.layout import RunLayout
from stoker.supervise.run.launch_log import Launched


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
