"""The job kinds of the stage-shard loop. A new kind is a new module with one entry below."""

from __future__ import annotations

from collections.abc import Mapping

from stokerd.sharding.activities.base import ShardActivity
from stokerd.sharding.activities.build import BUILD
from stokerd.sharding.activities.cleanup import QUARANTINE, RELEASE, SWEEP
from stokerd.sharding.activities.lister import LIST
from stokerd.sharding.activities.moves import EVICT, HYDRATE, RECALL, SYNC
from stokerd.sharding.activities.prove import PROVE
from stokerd.sharding.activities.recheck import REVALIDATE
from stokerd.sharding.activities.stage import STAGE
from stokerd.sharding.activities.tokenizer import TOKENIZER

ACTIVITIES: Mapping[str, ShardActivity] = {
    each.kind: each
    for each in (
        *(STAGE, TOKENIZER, BUILD, PROVE, QUARANTINE, RELEASE),
        *(SYNC, EVICT, HYDRATE, RECALL, REVALIDATE, SWEEP, LIST),
    )
}
