"""Build and prove: a build makes a source's shard set or continues it, a proof reads a whole set on hot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.config.units import format_bytes
from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.sources import EXCEEDS_DISK, KEY16, PUBLISHED, Books, Source
from stoker.corpus.schedule.outcome import READ_ROWS, SMALLEST, Outcome
from stoker.corpus.staging.disk_contents import AGAIN, FILES_BYTES, decide_growth
from stoker.kit.workers.pool import Job
from stoker.store.requests import Request
from stokerd.sharding.activities import base
from stokerd.sharding.activities.base import BuildWork, Message, ShardActivity, SourceWork, marks
from stokerd.sharding.effects import Answer, Begin, Effect, Send, Write, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

HF_TOKENIZERS = "tokenizers"  # the engine that can build every file
PROVE_SET = "prove_set"
RETRY_S = 1.0  # after a build that ran out of memory: the next one reads less


def _begin_build(state: State, path: str) -> Iterator[Effect]:
    source, pin = state.sources[path], state.records.pinning.pin
    assert pin is not None  # the schedule builds only after the pin
    key, before = state.key(source), source
    source = source.moved("building", key=key)
    if source != before:
        yield Write(source)
    attempt = state.pauses.memory.attempt(path, others=bool(state.builds()))
    pipeline, commit = state.pipeline, state.pipeline.shard.commit
    xxh3 = state.records.xxh3.get(source.sha256, "")  # empty if staged before this daemon started
    task = {
        "parquet": state.parquet(source),
        "source": {"path": source.path, "size": source.size, "sha256": source.sha256, "xxh3": xxh3},
        "dataset": source.dataset,
        "key": key,
        "build_id": pin.build_id,
        "build": dict(pin.build),
        "tokenizer_file": str(pipeline.layout.datasets / pin.tokenizer.file),
        "building": str(pipeline.hot_layout.building / key[:KEY16]),
        "target": str(state.set_on("hot", source)),
        "commit": {"every_s": commit.every, "bytes": commit.bytes},
        "commit_every_row_group": bool(source.deaths),  # to find the row group to blame
        "engine": pipeline.tokenizer.engine if _is_fast(state, source) else HF_TOKENIZERS,
        "memory": {"soft": pipeline.shard.memory.soft},
        "read_rows": READ_ROWS[attempt.rows],
        "room": state.space.grant(state, source) - FILES_BYTES,
        "disks": marks(state.hot),
    }
    yield Begin(BUILD, path, task, BuildWork(attempt=attempt))


def _is_fast(state: State, source: Source) -> bool:
    """Whether the file is built with another engine than the reference."""
    return HF_TOKENIZERS not in (state.pipeline.tokenizer.engine, source.engine)


def _engine_refused(source: Source, reason: str) -> Effect:
    """Returns the event that a file is built with the reference engine."""
    return event("engine_refused", path=source.path, used=HF_TOKENIZERS, reason=reason)


def _on_message(state: State, job: Job[BuildWork], message: Message) -> Iterator[Effect]:
    """Records a build's progress and its requests for space."""
    work = job.facts
    if "row_group" in message:
        work.row_group = message["row_group"]
    match message["kind"]:
        case "commit":
            work.reached = (message["row_group"], message["row"])
            state.pauses.disk_works("hot")
            state.progress.committed(work, int(message["tokens"]))
        case "room":  # answered after the next measure of hot
            work.asks = (int(message["written"]) + FILES_BYTES, int(message["needed"]) + FILES_BYTES)
            state.hot.measure_soon()
        case "engine":
            source = state.sources[job.subject]
            yield Write(replace(source, engine=HF_TOKENIZERS))
            yield _engine_refused(source, str(message["reason"]))
    match message.get("phase"):
        case "check_engine" | "encode":
            work.is_encoding = True
        case "open":
            work.is_resumed = bool(message.get("row_group") or message.get("row"))


def _built(state: State, job: Job[BuildWork], result: Message) -> Iterator[Effect]:
    source = state.sources[job.subject]
    _credit(state, job, source)
    if result["status"] == "target_invalid":
        yield from base.reject_set(state, source, str(result["reason"]))
        return
    state.pauses.memory.succeeded(source.path)
    state.records.xxh3.pop(source.sha256, None)
    yield from _proven(state, source, result)


def _not_built(state: State, job: Job[BuildWork], outcome: Outcome) -> Iterator[Effect]:
    source, memory = state.sources[job.subject], state.pauses.memory
    assert job.facts.attempt is not None  # set when the build began
    is_further = _credit(state, job, source)
    match outcome.kind:
        case "recycled":  # a new worker continues at once; without any progress it reads smaller batches
            yield event("worker_recycled", path=source.path, further=is_further)
            if not is_further:
                memory.read_less(source.path, min(SMALLEST, job.facts.attempt.rows + 1))
                reason = "its worker outgrew 320 MiB before it could commit"
                yield from base.try_again(state, job, source, reason)
        case "outgrown":
            state.hot.look_soon()  # the partial set is gone
            state.records.reached.pop((source.path, source.sha256), None)
            yield from _set_back(state, job, source)
        case "out_of_memory" | "over_memory":
            is_machines = outcome.kind == "out_of_memory"
            detail = memory.failed(source.path, job.facts.attempt, outcome.reason, is_machines=is_machines)
            if detail is not None:
                finding = Finding("out_of_memory", detail, job.facts.row_group)
                state.records.convicted[source.path] = finding
            yield from base.try_again(state, job, source, outcome.reason, wait_s=RETRY_S)
        case "died" | "stalled" | "silent" if job.facts.is_encoding and _is_fast(state, source):
            # The text may have crashed the engine: the reference engine shows whether the file is to blame.
            state.hot.look_soon()
            yield _engine_refused(source, outcome.reason)
            yield from base.try_again(state, job, replace(source, engine=HF_TOKENIZERS), outcome.reason)
        case _:
            yield from base.failed(state, job, outcome)


def _credit(state: State, job: Job[BuildWork], source: Source) -> bool:
    """Forgets failures when a worker came further than any before; without progress retries must end."""
    content, reached = (source.path, source.sha256), state.records.reached
    is_further = job.facts.reached > reached.get(content, (0, 0))
    if is_further:
        reached[content] = job.facts.reached
        state.retries.succeeded(source.path)
    return is_further


def answer_growth(state: State) -> Iterator[Effect]:
    """Answers builds that ask for space; a grant is in the ledger before its answer."""
    for job in state.builds():
        work, source = job.facts, state.sources[job.subject]
        if work.asks is None:
            continue
        growth = state.space.growth(state, source, written=work.asks[0], needed=work.asks[1])
        if growth is None:
            continue
        granted = decide_growth(growth)
        if granted is None:
            work.refused = growth
        else:
            state.space.granted[source.path] = granted
            state.space.refresh(state)
        work.asks = None  # last: if the ledger cannot be written, the answer comes later
        yield Send(job.subject, {"room": 0 if granted is None else granted - FILES_BYTES})


def _set_back(state: State, job: Job[BuildWork], source: Source) -> Iterator[Effect]:
    """Has a build that got no space begin again once there is more, or convicts a file too large for hot."""
    growth = job.facts.refused
    assert growth is not None  # set with the refusal that ended the build
    figures = {"needed_bytes": growth.needed, "expected_bytes": growth.expected}
    state.space.set_back(state, source, None if growth.is_hopeless else int(growth.needed * AGAIN))
    if growth.is_hopeless:
        detail = (
            f"its shard set took {format_bytes(growth.needed)} and was not done, where "
            f"{format_bytes(growth.expected)} were expected; hot has {format_bytes(growth.most)} for it"
        )
        figures["room_bytes"] = growth.most
        finding = Finding(EXCEEDS_DISK, detail, job.facts.row_group, figures=figures)
        state.records.convicted[source.path] = finding
        return
    reason = (
        f"its shard set needs more than the {format_bytes(growth.limit)} it may have on hot now; "
        "it begins again once there is more room"
    )
    figures["room_bytes"] = growth.limit
    yield event("build_set_back", path=source.path, reason=reason, **figures)


BUILD = ShardActivity(
    kind="build",
    module="stoker.shards.build.build_worker",
    stall_s=base.STALL_S,
    is_memory_bound=True,
    is_reusable=True,
    begin=_begin_build,
    on_message=_on_message,
    on_done=_built,
    on_end=_not_built,
    writes_to="hot",
)


# Prove: a set that no record owns, or that a request names


def _begin_proof(state: State, path: str) -> Iterator[Effect]:
    """Proves the set at the path's target."""
    source = state.sources[path]
    key = state.key(source)
    task = {"sets": [{"path": str(state.set_on("hot", source, key)), "key": key}], "disks": marks(state.hot)}
    yield Begin(PROVE, path, task, SourceWork(is_asked=source.state in PUBLISHED))


def _read(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source, proof = state.sources[job.subject], result["proofs"][0]
    if job.facts.is_asked:
        yield from _answer(state, source, proof)
    elif proof["verdict"] == "proven":
        yield from _proven(state, source, proof)
    elif proof["verdict"] == "invalid":
        yield from base.reject_set(state, source, str(proof["reason"]))
    else:
        yield from base.try_again(state, job, source, f"its shard set cannot be read: {proof['reason']}")


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
        yield from base.reject_set(state, source, reason)
    for request in state.records.to_prove.pop(source.path, ()):
        yield Answer(request, {"verdict": verdict, "reason": reason})


def consider_requests(state: State) -> Iterator[Effect]:
    """Answers the requests that need no proof; the rest wait in `to_prove`."""
    waiting: dict[str, list[Request]] = {}
    for request in state.records.asked(PROVE_SET):
        key = str(request.args.get("key"))
        source = state.sources.get(state.sources.of_key(key[:KEY16]) or "")
        if source is None or source.key != key:
            reason = "no shard set of this key is on record"
            yield Answer(request, {"verdict": "unknown", "reason": reason})
        elif source.evicted:
            yield Answer(request, {"verdict": "invalid", "reason": "the set is on warm only"})
        else:
            waiting.setdefault(source.path, []).append(request)
    state.records.to_prove = waiting


PROVE = ShardActivity(
    kind="prove", module="stoker.shards.format.proof_worker", begin=_begin_proof, on_done=_read
)


def _proven(state: State, source: Source, proof: Mapping[str, Any]) -> Iterator[Effect]:
    """Records that the source's set is published on hot and proven."""
    key, books = state.key(source), proof["books"]
    state.retries.succeeded(source.path)
    state.hot.published.add(key[:KEY16])
    if state.sources.owner(source.sha256) not in (None, source.path):
        return  # one content has one set: the schedule makes this source a duplicate
    about = {"books": Books.from_mapping(books), "manifest_sha256": proof["manifest_sha256"]}
    done = source.moved("proven", key=key, **about, reason=None, deaths=())
    yield Write(done)
    state.discard_build(done)
    yield event(
        "source_proven",
        path=source.path,
        key=key[:KEY16],
        documents=books["documents"],
        tokens=books["tokens"],
        dropped=sum((books["dropped"] or {}).values()),  # unknown for imported sets
    )
