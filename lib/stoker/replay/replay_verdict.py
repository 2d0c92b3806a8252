"""Compares a finished replay with the recorded run: every loss row and every tensor, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.proof import prove_checkpoint
from stoker.plan.timelines import ancestry, committed
from stoker.replay.replay_site import Site
from stoker.store.errors import DataError, StorageError
from stoker.supervise.run.metrics_log import TIMED
from stoker.supervise.run.step_rows import rows_of

TENSORS = ("model-", "optimizer-", "ema-")
MOST_TOLD = 10
Key = tuple[int, bool]  # (step, whether it is a training row; else a held-out row)
Rows = Mapping[Key, Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """The extent of the comparison and the first differences; `step` is the compared checkpoint's.

    `files` is the number of files that hold the tensors of the model and the optimizer.
    """

    identical: bool
    to: int
    step: int | None
    rows: int
    heldout_rows: int
    files: int
    differences: tuple[str, ...]
    more: int


def compare(site: Site) -> Verdict:
    """Compares a finished replay with the record; a difference is a verdict, not an error.

    Raises DataError or StorageError for a checkpoint that cannot be compared.
    """
    files, found = (0, list[str]()) if site.compared is None else _compare_checkpoints(site, site.compared)
    history = ancestry(site.timelines(), site.timeline)
    rows = [read_rows(path, history, site.to) for path in (site.metrics, site.run.metrics)]
    found = [*row_differences(*rows), *found]
    both = rows[0].keys() & rows[1].keys()
    trained = sum(1 for _, trained in both if trained)
    return Verdict(
        identical=not found,
        to=site.to,
        step=None if site.compared is None else site.compared["step"],
        rows=trained,
        heldout_rows=len(both) - trained,
        files=files,
        differences=tuple(found[:MOST_TOLD]),
        more=len(found[MOST_TOLD:]),
    )


def read_rows(path: Path, history: Sequence[tuple[int, int | None]], to: int) -> Rows:
    """Returns the rows of a history in a training log, up to a step; skips lines that are no rows."""
    rows = (row for row in rows_of(path) if row["step"] <= to)
    kept = committed(rows, history, lambda row: (row["timeline"], row["step"], "loss" in row))
    return {(row["step"], "loss" in row): row for row in kept}


def row_differences(recorded: Rows, repeated: Rows) -> Iterator[str]:
    """Yields the differences of the rows, by step. Held-out losses are compared where both logs have one.

    The steps of held-out losses, and their side of a fork, depend on how launches ended, which a replay does
    not repeat; their values do not.
    """
    for key in sorted(recorded.keys() | repeated.keys()):
        step, trained = key
        one, other = recorded.get(key), repeated.get(key)
        if one is None or other is None:
            if trained:
                yield f"step {step}: {'the record' if one is None else 'the replay'} has no row"
            continue
        # A launch that only repeated an evaluation may have had an average of the weights, or none.
        names = one.keys() | other.keys() if trained else (one.keys() & other.keys()) - {"timeline"}
        for name in sorted(names - TIMED):
            if one.get(name) != other.get(name):
                yield f"step {step}: {name} is {one.get(name)} in the record, {other.get(name)} in the replay"


def _compare_checkpoints(site: Site, recorded: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Returns the number of tensor files, and the differences; equal files hold equal bits."""
    repeated = site.run.checkpoints / checkpoint_name(recorded["step"])
    proof = prove_checkpoint(repeated)
    if proof.verdict == "unreadable":
        raise StorageError(f"{repeated} cannot be read now: {proof.reason}; run this again")
    if proof.body is None:
        raise DataError(f"{repeated} is not whole: {proof.reason}; remove it, and it is made again")
    fields, made = _figures(recorded), _figures(proof.body.raw)
    found = [
        f"step {recorded['step']}: {name} is {fields.get(name)} in the recorded checkpoint, "
        f"{made.get(name)} in the replay's"
        for name in sorted(fields.keys() | made.keys())
        if fields.get(name) != made.get(name)
    ]
    return sum(name.startswith(TENSORS) for name in fields), found


def _figures(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that must be equal in two checkpoints: place in the plan, and tensor hashes."""
    hashes = {name: entry["sha256"] for name, entry in body["files"].items() if name.startswith(TENSORS)}
    return hashes | {name: body[name] for name in ("step", "timeline", "tokens", "position")}
