"""A kind of job of the train supervisor that only a test has: it counts its workers of a launch."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.supervise.state import Phase
from stokerd.supervision.jobs.base import RunActivity, Slice


@dataclass
class Census:
    pids: list[int] = field(default_factory=list)


CENSUSES = Slice("census", lambda _: Census(), Census, resets=(Phase.CLEANING,))
CENSUS = RunActivity(
    kind="census",
    module="support.census_worker",
    task=lambda run, _: {"file": str(run.layout.root / "census"), "before": CENSUSES.of(run).pids},
    on_message=lambda run, _, message: CENSUSES.of(run).pids.append(message["pid"]),
    on_end=lambda run, job, end: None,
    due=lambda _: [""],
    due_in=(Phase.TRAINING,),
    slices=(CENSUSES,),
)
