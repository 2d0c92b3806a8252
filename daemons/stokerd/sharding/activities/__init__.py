"""The job kinds of the stage-shard loop. A new kind is a new module with one entry below."""

from __future__ import annotations

from collections.abc import Mapping

from stokerd.sharding.activities.base import ShardActivity
from stokerd.sharding.activities.build import BUILD, PROVE
from stokerd.sharding.activities.disks import LIST, SWEEP
from stokerd.sharding.activities.files import QUARANTINE, STAGE
from stokerd.sharding.activities.moves import EVICT, HYDRATE, RECALL, SYNC
from stokerd.sharding.activities.quarantine import RECHECK
from stokerd.sharding.activities.tokenizer import TOKENIZER

ACTIVITIES: Mapping[str, ShardActivity] = {
    each.kind: each
    for each in (
        *(STAGE, TOKENIZER, BUILD, PROVE, QUARANTINE),
        *(SYNC, EVICT, HYDRATE, RECALL, RECHECK, SWEEP, LIST),
    )
}
