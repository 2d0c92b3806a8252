"""Prove: reads a whole set on hot that no record owns, or that a request names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.corpus.records.index import KEY16
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.kit.workers.pool import Job
from stoker.store.requests import Request
from stokerd.sharding.activities.base import Message, ShardActivity, marks, proven, reject_set, try_again
from stokerd.sharding.effects import Answer, Begin, Effect
from stokerd.sharding.state import SourceWork, State

PROVE_SET = "prove_set"


def begin(state: State, path: str) -> Iterator[Effect]:
    """Proves the set at the path's target."""
    source = state.sources[path]
    key = state.key(source)
    task = {"sets": [{"path": str(state.set_on("hot", source, key)), "key": key}], "disks": marks(state.hot)}
    yield Begin(PROVE, path, task, SourceWork(is_asked=source.state in PUBLISHED))


def on_done(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source, proof = state.sources[job.subject], result["proofs"][0]
    if job.facts.is_asked:
        yield from _answer(state, source, proof)
    elif proof["verdict"] == "proven":
        yield from proven(state, source, state.key(source), proof["books"], proof["manifest_sha256"])
    elif proof["verdict"] == "invalid":
        yield from reject_set(state, source, str(proof["reason"]))
    else:
        yield from try_again(state, job, source, f"its shard set cannot be read: {proof['reason']}")


def _answer(state: State, source: Source, proof: Mapping[str, Any]) -> Iterator[Effect]:
    """Brings the record in line with a proof, then answers the requests."""
    if proof["missing"]:
        state.hot.look_soon()  # shows whether only the set is gone, or the whole disk
        state.retries.failed(source.path)
        return
    state.retries.succeeded(source.path)
    verdict, reason = proof["verdict"], str(proof["reason"])
    if verdict == "proven" and proof["manifest_sha256"] != source.manifest_sha256:
        verdict = "unreadable" if proof["cached"] else "invalid"
        reason = "its manifest is not the one on record"
    if verdict == "invalid" and source.state in PUBLISHED:
        yield from reject_set(state, source, reason)
    for request in state.records.to_prove.pop(source.path, ()):
        yield Answer(request, {"verdict": verdict, "reason": reason})


def consider(state: State) -> Iterator[Effect]:
    """Answers the requests that need no proof; the rest wait in `to_prove`."""
    waiting: dict[str, list[Request]] = {}
    for request in state.records.asked(PROVE_SET):
        source = _owner(state, request.args.get("key"))
        if source is None:
            reason = "no shard set of this key is on record"
            yield Answer(request, {"verdict": "unknown", "reason": reason})
        elif not source.hot:
            where = "on warm only" if source.evicted else f"not on hot, its source is {source.state}"
            yield Answer(request, {"verdict": "invalid", "reason": f"the set is {where}"})
        else:
            waiting.setdefault(source.path, []).append(request)
    state.records.to_prove = waiting


def _owner(state: State, key: object) -> Source | None:
    key_of, sources = state.records.pinning.key_of(), state.sources
    owner = sources.get(sources.of_key(str(key)[:KEY16]) or "")
    if owner is not None and owner.key == key:
        return owner
    return next((one for one in sources.values() if key_of and key_of(one.sha256) == key), None)


PROVE = ShardActivity(kind="prove", module="stoker.shards.format.proof_worker", begin=begin, on_done=on_done)
