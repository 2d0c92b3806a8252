"""The directory a recorded run is trained again in: frozen copies of its history, and a run of its own.

    replay.json         whose history this is, how far it goes, which checkpoint it is compared with
    run/                plan, timelines, launches, held-out windows, tokenizer; then the replay's own results
    recorded/           training log, launch record, and what one of its checkpoints was computed with
    shards/             links to the run's shard sets on hot, or on warm

All is taken at the beginning, so that the pipeline may go on, roll back and prune meanwhile.

The history is trained again in phases, without its faults: a kill and a resume change nothing in a
deterministic run. A new phase begins where a launch had other settings or a rollback changed the timeline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.checkpoints.select import Found, candidates, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.plan.log import Plan, read_plan
from stoker.plan.timelines import Timelines, ancestry, read_timelines
from stoker.store.errors import DataError
from stoker.store.layout import RunLayout
from stoker.store.record import write_record
from stoker.supervise.run.launch_record import Launched, Makers, read_launches

COMPARED = ("step", "timeline", "tokens", "position", "files")  # of a checkpoint.json


class Site:
    """A replay's directory; `told` is the body of replay.json, empty before there is one."""

    def __init__(self, root: Path, told: Mapping[str, Any]) -> None:
        self.root, self.told = root, told
        self.run = RunLayout(root / "run")  # the replay's own run
        self.shards = root / "shards"
        self.tokenizer = self.run.root / "tokenizer.json"
        recorded = root / "recorded"
        self.metrics = recorded / "metrics.jsonl"
        self.base = recorded / "launch.json"
        self.machine = recorded / "trainer.json"  # of one of its checkpoints: what it was computed with
        # Of the recorded checkpoint.json to compare with, None when there is none as early.
        self.compared: Mapping[str, Any] | None = told.get("compared")
        self.to, self.timeline = int(told.get("to", 0)), int(told.get("timeline", 0))

    def plan(self) -> Plan:
        return read_plan(self.run.plan)

    def timelines(self) -> Timelines:
        return read_timelines(self.run.timelines)

    def phases(self) -> list[Phase]:
        """What is to be trained; it stops where the recorded checkpoint stands."""
        launches = read_launches(self.run.launches)[0]
        stop = self.compared["step"] if self.compared is not None else None
        return phases(launches, self.timelines(), timeline=self.timeline, to=self.to, stop=stop)

    def finish(self, verdict: Mapping[str, Any]) -> None:
        """Write down what was found; the directory is no unfinished replay any more."""
        write_record(self.root / "replay.json", {**self.told, "state": "done", "verdict": dict(verdict)})


def own_checkpoints(site: Site) -> Iterator[Found]:
    """What the replay sealed itself, newest first."""
    history = ancestry(site.timelines(), site.timeline)
    yield from candidates(find_checkpoints(site.run.checkpoints), history)


def link_sets(site: Site, pipeline: Pipeline) -> list[str]:
    """Point a link for each set of the plan at a directory that holds it: hot's, else warm's copy.

    Returns the first 16 digits of the keys whose link was changed. A set that is nowhere, or is not the one
    that the plan names, has none: the trainer that wants to read it says so.
    """
    site.shards.mkdir(exist_ok=True)
    disks = [disk for disk in (pipeline.hot_layout, pipeline.warm_layout) if disk is not None]
    places = [disk.shards(str(site.told["dataset"])) for disk in disks]
    changed = []
    for key, digest in dict(pair for entry in site.plan().segments for pair in entry.sets).items():
        link = site.shards / key[:16]
        if link.is_symlink() and _holds(link, digest):
            continue
        found = next((place / key[:16] for place in places if _holds(place / key[:16], digest)), None)
        if found is None:
            continue
        fresh = site.shards / f".{key[:16]}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(found)
        fresh.replace(link)
        changed.append(key[:16])
    return changed


def _holds(directory: Path, digest: str) -> bool:
    """Whether the set of this manifest lies there; its files are checked when they are opened."""
    try:
        return hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest() == digest
    except OSError:
        return False


@dataclass(frozen=True)
class Phase:
    """Steps `first` to `last` (from 1, both included), made on one timeline with the same settings."""

    first: int
    last: int
    timeline: int
    settings: Mapping[str, Any]


def phases(
    launches: Sequence[Launched], timelines: Timelines, *, timeline: int, to: int, stop: int | None = None
) -> list[Phase]:
    """The phases of a timeline's history up to step `to`; one of them ends at `stop`.

    Raises DataError for a step that no launch on record made.
    """
    forks = [upto for _, upto in ancestry(timelines, timeline) if upto is not None]
    begins = {1, *(one.resume_step + 1 for one in launches), *(upto + 1 for upto in forks), (stop or 0) + 1}
    makers, made = Makers(launches, timelines, timeline), list[Phase]()
    for first in sorted(step for step in begins if 1 <= step <= to):
        launch = makers.of(first)
        if launch is None:
            raise DataError(
                f"the log of launches knows none that made step {first} of timeline {timeline}: it was "
                "damaged, or the run began before there was one"
            )
        phase = Phase(first, to, launch.timeline, launch.settings)
        is_same = made and (made[-1].timeline, made[-1].settings) == (phase.timeline, phase.settings)
        if is_same and first - 1 != stop:
            continue
        if made:
            made[-1] = replace(made[-1], last=first - 1)
        made.append(phase)
    return made


def phase_of(parts: Sequence[Phase], step: int) -> Phase | None:
    """The phase that makes a step; None behind the last."""
    return next((part for part in parts if part.first <= step <= part.last), None)


def forbids(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What of two `trainer.json` (compute and versions) rules out equal bits, half a sentence each.

    What one of the two does not say is not compared.
    """
    found = []
    for part, name in _DECISIVE:
        told, now = (side.get(part, {}).get(name) for side in (recorded, here))
        if None not in (told, now) and told != now:
            found.append(f"{name} is {told} in the recorded run and {now} here")
    return found


_DECISIVE = (
    ("versions", "torch"),
    ("compute", "device"),
    ("compute", "precision"),
    ("compute", "threads"),
    ("compute", "micro_batch"),
)
