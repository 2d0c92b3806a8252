"""consumed.json: how far a run has trained, and which sets it needs on hot. The supervisor writes it.

The stage-shard loop evicts by it: no set of the plan from `low_water` to `reach` leaves hot; a set in `wants`
leaves only for a more urgent one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.plan.log import Plan, read_plan
from stoker.plan.positions import START, Position, Skip, books
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, read_record


@dataclass(frozen=True)
class Holdings:
    """The part of the plan that a run needs on hot; a finished run needs none."""

    run: str
    plan: Plan
    low_water: Position = START  # the least position of a checkpoint that the run may resume from
    wants: tuple[str, ...] = ()  # keys of sets that a resume or future entries read, most urgent first
    finished: str | None = None  # why the run is over
    windows_per_s: float | None = None  # as measured, None while unknown
    reach: Position | None = None  # where the current launch stops; None: at the plan's end


def consumed_body(
    run: Holdings, checkpoint: str | None, body: Mapping[str, Any], skips: Sequence[Skip] = ()
) -> dict[str, Any]:
    """Returns the body of the record, with the counts of trained, skipped and unusable windows.

    `checkpoint` and `body` are the newest proven checkpoint and its checkpoint.json, or the run's beginning.
    """
    exhausted = run.finished == "data_exhausted"
    account = books(run.plan, Position.parse(body["position"]), skips, exhausted=exhausted)
    return {
        "v": 1,
        "run": run.run,
        "checkpoint": checkpoint,
        "step": body["step"],
        "position": list(body["position"]),
        "tokens": body["tokens"],
        **{key: getattr(account, key) for key in ("applied", "skipped", "remainder", "tail_tokens")},
        "low_water": run.low_water.as_list(),
        "reach": None if run.reach is None else run.reach.as_list(),
        "wants": list(run.wants),
        "finished": run.finished,
        "windows_per_s": run.windows_per_s,
    }


def read_holdings(layout: StateLayout) -> list[Holdings]:
    """Returns the holdings of every run, from plan and consumed.json; raises DataError for a damaged plan.

    A run whose record is missing or damaged holds its whole plan.
    """
    try:
        names = sorted(path.name for path in layout.runs.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    return [_holdings(layout, name) for name in names]


def _holdings(layout: StateLayout, name: str) -> Holdings:
    run = layout.run(name)
    plan = read_plan(run.plan)
    try:
        body = read_record(run.consumed)
        rate, reach = body.get("windows_per_s"), body.get("reach")
        return Holdings(
            name,
            plan,
            Position.parse(body["low_water"]),
            tuple(str(key) for key in body["wants"]),
            body.get("finished"),
            None if rate is None else float(rate),
            None if reach is None else Position.parse(reach),
        )
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return Holdings(name, plan)
