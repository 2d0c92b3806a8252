"""The job kinds of the train supervisor. A new kind is a new module with one entry below."""

from __future__ import annotations

from stokerd.supervision.jobs.base import RunActivity
from stokerd.supervision.jobs.evaluation import EVALUATION, EVALUATION_BETWEEN
from stokerd.supervision.jobs.external import LOOK, RESTORE, WATCH
from stokerd.supervision.jobs.gpus import GPUS
from stokerd.supervision.jobs.hook import HOOK, HOOK_PROMOTED
from stokerd.supervision.jobs.mirror import FETCH, SYNC
from stokerd.supervision.jobs.proofs import CHECKPOINT, HELDOUT, ORIGIN, SETS

ACTIVITIES: dict[str, RunActivity] = {
    each.kind: each
    for each in (
        *(CHECKPOINT, ORIGIN, SETS, HELDOUT, SYNC, FETCH),
        *(LOOK, RESTORE, WATCH, HOOK, HOOK_PROMOTED, GPUS),
        *(EVALUATION_BETWEEN, EVALUATION),
    )
}
