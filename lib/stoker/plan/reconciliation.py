"""Before anything is appended the plan is compared with the copy in the newest proven checkpoint."""

from __future__ import annotations

from stoker.plan.log import Entry, Plan, PlanWriter
from stoker.store.errors import DataError


def reconcile(plan: Plan, copy: Plan) -> tuple[Entry, ...]:
    """Entries of a checkpoint's copy that the plan has lost; none when the copy is a prefix of the plan.

    Raises DataError when the two forked: training went by one of them, no append can tell which is right.
    """
    common = min(len(plan.hashes), len(copy.hashes))
    for n in range(common):
        if plan.hashes[n] != copy.hashes[n]:
            raise DataError(
                f"plan entry {n} differs from the copy in the newest proven checkpoint: two histories; "
                "nothing is appended. Restore plan.jsonl from that checkpoint, or roll back before it"
            )
    return copy.entries[common:]


def restore(writer: PlanWriter, copy: Plan) -> int:
    """Append what the plan has lost against the copy, line for line; returns how many entries came back."""
    lost = reconcile(writer.plan, copy)
    for entry in lost:
        plan = writer.append(entry)
        if plan.head != copy.hashes[entry.n]:
            raise DataError(
                f"plan entry {entry.n} cannot be written again as the checkpoint's copy has it: "
                "another version wrote that line; restore plan.jsonl from the checkpoint by hand"
            )
    return len(lost)
