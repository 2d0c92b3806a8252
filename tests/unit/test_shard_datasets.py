"""A dataset is a value: what belongs to one of two datasets on a machine changes and counts there alone."""

from __future__ import annotations

from stoker.corpus.records.sources import Source
from stoker.observe.ledger import read_claims
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Begin, Write
from stokerd.sharding.work import SourceWork
from support.shard_state import MIB, Shard


def test_records_jobs_and_claims_are_those_of_the_dataset_they_name(shard: Shard) -> None:
    state, one = shard.state, shard.dataset
    other = state.datasets["other"] = DatasetState(state, "other")
    shard.look()
    shard.source("a")
    shard.apply([Write(Source("other", "b", 2 * MIB, "b" * 64))])
    assert (list(one.sources), list(other.sources)) == (["a"], ["b"])
    shard.job("stage", "a", SourceWork())
    shard.apply([Begin("other", ACTIVITIES["stage"], "b", {}, SourceWork())])
    assert (one.doing("stage"), other.doing("stage")) == (["a"], ["b"])
    assert [state.of(job) for job in shard.pool.jobs[-2:]] == [one, other]
    state.claim_space()
    claims = read_claims(shard.layout, STAGE_SHARD)
    assert [claim.bytes for claim in claims if claim.purpose == "staging"] == [MIB, 2 * MIB]
