"""consumed.json: what a run has trained on, and what of the hot disk it holds on to. The supervisor's word.

The evictor goes by it: nothing from `low_water` on to `reach` in the plan leaves hot; what is in `wants` does
only for a more urgent want.
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
    """What one run holds on hot.

    `low_water` is the least position any checkpoint of its resume horizon stands at; `wants` are keys (64
    hex) of sets that coming entries will name or a resume will read, most urgent first; a finished run holds
    nothing. `reach` is where the run will stop before it goes on, where hot cannot hold all that is planned;
    None: it may train on to the plan's end. `windows_per_s` is the measured rate, None before it is known.
    """

    run: str
    plan: Plan
    low_water: Position = START
    wants: tuple[str, ...] = ()
    finished: bool = False
    windows_per_s: float | None = None
    reach: Position | None = None


def consumed_body(
    run: str,
    checkpoint: str | None,
    body: Mapping[str, Any],
    plan: Plan,
    *,
    finished: str | None = None,
    skips: Sequence[Skip] = (),
    low_water: Position = START,
    wants: tuple[str, ...] = (),
    windows_per_s: float | None = None,
    reach: Position | None = None,
) -> dict[str, Any]:
    """The record's body: what of the plan is trained on, and what never will be.

    `body` is the newest proven checkpoint.json, or says where the run begins.
    """
    account = books(plan, Position.parse(body["position"]), skips, exhausted=finished == "data_exhausted")
    return {
        "v": 1,
        "run": run,
        "checkpoint": checkpoint,
        "step": body["step"],
        "position": list(body["position"]),
        "tokens": body["tokens"],
        **{key: getattr(account, key) for key in ("applied", "skipped", "remainder", "tail_tokens")},
        "low_water": low_water.as_list(),
        "reach": None if reach is None else reach.as_list(),
        "wants": list(wants),
        "finished": finished,
        "windows_per_s": windows_per_s,
    }


def read_holdings(layout: StateLayout) -> list[Holdings]:
    """What every run of the pipeline holds, by its plan and its consumed.json; DataError for a damaged plan.

    A run without the record, or with a damaged one, holds all its plan names.
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
            body.get("finished") is not None,
            None if rate is None else float(rate),
            None if reach is None else Position.parse(reach),
        )
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return Holdings(name, plan)
