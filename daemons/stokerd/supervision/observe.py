"""What the supervisor sees of its run: the facts that its phase decides by, and no others."""

from __future__ import annotations

import time
from dataclasses import replace

from stoker.checkpoints.mirror.layout import fallback
from stoker.checkpoints.select import counts
from stoker.store.hashing import hash_file
from stoker.supervise.actions import MirrorJob, ProveCheckpoint
from stoker.supervise.decide import AskedRollback, Seen
from stoker.supervise.mirroring import is_settled
from stokerd.supervision.run import Run


def proving(run: Run, seen: Seen, rollback: AskedRollback | None) -> Seen:
    """What the choice of a checkpoint goes by."""
    state, history = run.state, run.accounts.history()
    if not state.is_taken_up or rollback is not None:
        return replace(seen, rollback=rollback, has_mirror=run.mirror is not None)
    if state.is_settled:
        return replace(seen, lost_heldout=_lost_heldout(run), over=run.accounts.over(run.at))
    name = run.checkpoints.newest_candidate(history)
    newest = run.checkpoints.get(name)
    seen = replace(seen, candidate=name)
    if newest is not None:
        is_on_history = counts(int(newest.body["timeline"]), newest.step, history)
        seen = replace(seen, is_on_history=is_on_history)
    elif not name:
        why = run.accounts.why_not_from_start(has_rejected=state.has_rejected)
        seen = replace(seen, why_not_from_start=why)
    if run.mirror is None:
        return seen
    step = newest.step if newest is not None else None
    look = run.mirror.to_look(step, history, has_rejected=state.has_rejected)
    newer = fallback(run.mirror.copies, history, -1 if step is None else step)
    return replace(seen, look=look, newer=next(iter(newer), None))


def _lost_heldout(run: Run) -> str:
    """The hash of the held-out windows where they are not whole here, and the mirror may have them."""
    held = run.store.record.heldout if run.store.record is not None else None
    if held is None or run.state.is_heldout_seen:
        return ""
    try:
        return "" if hash_file(run.layout.heldout, past_cache=False).sha256 == held.sha256 else held.sha256
    except FileNotFoundError:
        return held.sha256


def finished(run: Run, seen: Seen) -> Seen:
    """Whether older checkpoints have still to be proven, or proven ones to be mirrored."""
    if run.state.is_at_rest:
        return seen
    now, history = time.monotonic(), run.accounts.history()
    is_judged = ProveCheckpoint.slot not in seen.jobs and not run.checkpoints.unproven(history, now)
    if run.mirror is None or run.store.record is None or run.mirror.trouble is not None:
        return replace(seen, is_settled=is_judged)
    local, policy = run.checkpoints.to_mirror(), run.checkpoints.policy
    is_mirrored = MirrorJob.slot not in seen.jobs and is_settled(run.mirror, local, history, policy, now)
    return replace(seen, is_settled=is_judged and is_mirrored)
