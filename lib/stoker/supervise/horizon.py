"""Where a run ends, and what its books say at a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.plan.log import Plan
from stoker.plan.positions import Position, Skip, books, left_after


def finished_at(
    step: int, position: Position, plan: Plan, *, steps: int, global_batch: int, skips: Sequence[Skip] = ()
) -> str | None:
    """Why a run that stands here is over: "steps", "data_exhausted", or None when it goes on."""
    if step >= steps:
        return "steps"
    if plan.ended and left_after(plan, position, skips) < global_batch:
        return "data_exhausted"
    return None


def consumed(
    run: str,
    name: str,
    body: Mapping[str, Any],
    plan: Plan,
    *,
    finished: str | None,
    skips: Sequence[Skip] = (),
) -> dict[str, Any]:
    """consumed.json at a proven checkpoint: what of the plan is trained on, and what never will be."""
    account = books(plan, Position.parse(body["position"]), skips, exhausted=finished == "data_exhausted")
    return {
        "v": 1,
        "run": run,
        "checkpoint": name,
        "step": body["step"],
        "position": list(body["position"]),
        "tokens": body["tokens"],
        "applied": account.applied,
        "skipped": account.skipped,
        "remainder": account.remainder,
        "tail_tokens": account.tail_tokens,
    }
