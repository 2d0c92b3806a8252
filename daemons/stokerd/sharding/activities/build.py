"""Build and prove: a build makes a source's shard set or continues it, a proof reads a whole set on hot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.sources import KEY16, PUBLISHED, Books, Source
from stoker.corpus.schedule.outcome import READ_ROWS, SMALLEST, Outcome
from stoker.corpus.staging.disk_contents import FILES_BYTES
from stoker.kit.workers.pool import Job
from stoker.store.requests import Request
from stokerd.sharding.activities import base
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.disk import marks
from stokerd.sharding.effects import Answer, Begin, Effect, Write, event
from stokerd.sharding.growth import set_back
from stokerd.sharding.inbox import PROVE_SET
from stokerd.sharding.work import BuildWork, Message, SourceWork

HF_TOKENIZERS = "tokenizers"  # the engine that can build every file
RETRY_S = 1.0  # after a build that ran out of memory: the next one reads less


def _begin_build(dataset: DatasetState, path: str) -> Iterator[Effect]:
    source, pin = dataset.sources[path], dataset.pinning.pin
    assert pin is not None  # the schedule builds only after the pin
    key, before = dataset.key(source), source
    source = source.moved("building", key=key)
    if source != before:
        yield Write(source)
    others = any(job.kind == "build" for job in dataset.pool.jobs)
    attempt = dataset.machine.memory.attempt(path, others=others)
    pipeline, commit = dataset.pipeline, dataset.pipeline.shard.commit
    xxh3 = dataset.xxh3.get(source.sha256, "")  # empty if staged before this daemon started
    task = {
        "parquet": dataset.parquet(source),
        "source": {"path": source.path, "size": source.size, "sha256": source.sha256, "xxh3": xxh3},
        "dataset": source.dataset,
        "key": key,
        "build_id": pin.build_id,
        "build": dict(pin.build),
        "tokenizer_file": str(pipeline.layout.datasets / pin.tokenizer.file),
        "building": str(pipeline.hot_layout.building / key[:KEY16]),
        "target": str(dataset.set_on("hot", source)),
        "commit": {"every_s": commit.every, "bytes": commit.bytes},
        "commit_every_row_group": bool(source.deaths),  # to find the row group to blame
        "engine": pipeline.tokenizer.engine if _is_fast(dataset, source) else HF_TOKENIZERS,
        "memory": {"soft": pipeline.shard.memory.soft},
        "read_rows": READ_ROWS[attempt.rows],
        "room": dataset.needs.grant(source) - FILES_BYTES,
        "disks": marks(dataset.hot),
    }
    yield Begin(dataset.name, BUILD, path, task, BuildWork(attempt=attempt))


def _is_fast(dataset: DatasetState, source: Source) -> bool:
    """Whether the file is built with another engine than the reference."""
    return HF_TOKENIZERS not in (dataset.pipeline.tokenizer.engine, source.engine)


def _engine_refused(source: Source, reason: str) -> Effect:
    """Returns the event that a file is built with the reference engine."""
    return event("engine_refused", path=source.path, used=HF_TOKENIZERS, reason=reason)


def _on_message(dataset: DatasetState, job: Job[BuildWork], message: Message) -> Iterator[Effect]:
    """Records a build's progress and its requests for space."""
    work = job.facts
    if "row_group" in message:
        work.row_group = message["row_group"]
    match message["kind"]:
        case "commit":
            work.reached = (message["row_group"], message["row"])
            dataset.pauses.disk_works("build")
            dataset.progress.committed(work, int(message["tokens"]))
        case "room":  # answered after the next measure of hot
            work.asks = (int(message["written"]) + FILES_BYTES, int(message["needed"]) + FILES_BYTES)
            dataset.hot.measure_soon()
        case "engine":
            source = dataset.sources[job.subject]
            yield Write(replace(source, engine=HF_TOKENIZERS))
            yield _engine_refused(source, str(message["reason"]))
    match message.get("phase"):
        case "check_engine" | "encode":
            work.is_encoding = True
        case "open":
            work.is_resumed = bool(message.get("row_group") or message.get("row"))


def _built(dataset: DatasetState, job: Job[BuildWork], result: Message) -> Iterator[Effect]:
    source = dataset.sources[job.subject]
    _credit(dataset, job, source)
    if result["status"] == "target_invalid":
        yield from base.reject_set(dataset, source, str(result["reason"]))
        return
    dataset.machine.memory.succeeded(source.path)
    dataset.xxh3.pop(source.sha256, None)
    yield from _proven(dataset, source, result)


def _not_built(dataset: DatasetState, job: Job[BuildWork], outcome: Outcome) -> Iterator[Effect]:
    source, memory = dataset.sources[job.subject], dataset.machine.memory
    assert job.facts.attempt is not None  # set when the build began
    is_further = _credit(dataset, job, source)
    match outcome.kind:
        case "recycled":  # a new worker continues at once; without any progress it reads smaller batches
            yield event("worker_recycled", path=source.path, further=is_further)
            if not is_further:
                memory.read_less(source.path, min(SMALLEST, job.facts.attempt.rows + 1))
                reason = "its worker outgrew 320 MiB before it could commit"
                yield from base.try_again(dataset, job, source, reason)
        case "outgrown":
            dataset.hot.look_soon()  # the partial set is gone
            dataset.reached.pop((source.path, source.sha256), None)
            yield from set_back(dataset, job, source)
        case "out_of_memory" | "over_memory":
            is_machines = outcome.kind == "out_of_memory"
            detail = memory.failed(source.path, job.facts.attempt, outcome.reason, is_machines=is_machines)
            if detail is not None:
                finding = Finding("out_of_memory", detail, job.facts.row_group)
                dataset.convicted[source.path] = finding
            yield from base.try_again(dataset, job, source, outcome.reason, wait_s=RETRY_S)
        case "died" | "stalled" | "silent" if job.facts.is_encoding and _is_fast(dataset, source):
            # The text may have crashed the engine: the reference engine shows whether the file is to blame.
            dataset.hot.look_soon()
            yield _engine_refused(source, outcome.reason)
            yield from base.try_again(dataset, job, replace(source, engine=HF_TOKENIZERS), outcome.reason)
        case _:
            yield from base.failed(dataset, job, outcome)


def _credit(dataset: DatasetState, job: Job[BuildWork], source: Source) -> bool:
    """Forgets failures when a worker came further than any before; without progress retries must end."""
    content, reached = (source.path, source.sha256), dataset.reached
    is_further = job.facts.reached > reached.get(content, (0, 0))
    if is_further:
        reached[content] = job.facts.reached
        dataset.retries.succeeded(source.path)
    return is_further


BUILD = base.ShardActivity(
    kind="build",
    module="stoker.shards.build.build_worker",
    stall_s=base.STALL_S,
    is_memory_bound=True,
    is_reusable=True,
    begin=_begin_build,
    on_message=_on_message,
    on_done=_built,
    on_end=_not_built,
)


# Prove: a set that no record owns, or that a request names


def _begin_proof(dataset: DatasetState, path: str) -> Iterator[Effect]:
    """Proves the set at the path's target."""
    task = base.proof_task(dataset, "hot", path)
    is_asked = dataset.sources[path].state in PUBLISHED
    yield Begin(dataset.name, PROVE, path, task, SourceWork(is_asked=is_asked))


def _read(dataset: DatasetState, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source, proof = dataset.sources[job.subject], result["proofs"][0]
    if job.facts.is_asked:
        yield from _answer(dataset, source, proof)
    elif proof["verdict"] == "proven":
        yield from _proven(dataset, source, proof)
    elif proof["verdict"] == "invalid":
        yield from base.reject_set(dataset, source, str(proof["reason"]))
    else:
        yield from base.try_again(dataset, job, source, f"its shard set cannot be read: {proof['reason']}")


def _answer(dataset: DatasetState, source: Source, proof: Mapping[str, Any]) -> Iterator[Effect]:
    """Brings the record in line with a proof, then answers the requests."""
    if proof["missing"]:
        dataset.hot.look_soon()  # shows whether only the set is gone, or the whole disk
        dataset.retries.failed(source.path)
        return
    dataset.retries.succeeded(source.path)
    verdict, reason = proof["verdict"], str(proof["reason"])
    if verdict == "proven" and proof["manifest_sha256"] != source.manifest_sha256:
        verdict = "unreadable" if proof["cached"] else "invalid"
        reason = "its manifest is not the one on record"
    if verdict == "invalid" and source.state in PUBLISHED:
        yield from base.reject_set(dataset, source, reason)
    for request in dataset.to_prove.pop(source.path, ()):
        yield Answer(request, {"verdict": verdict, "reason": reason})


def consider_requests(dataset: DatasetState) -> Iterator[Effect]:
    """Answers the requests that need no proof; the rest wait in `to_prove`."""
    waiting: dict[str, list[Request]] = {}
    for request in dataset.machine.inbox.asked(PROVE_SET):
        key = str(request.args.get("key"))
        source = dataset.sources.get(dataset.sources.of_key(key[:KEY16]) or "")
        if source is None or source.key != key:
            reason = "no shard set of this key is on record"
            yield Answer(request, {"verdict": "unknown", "reason": reason})
        elif source.evicted:
            yield Answer(request, {"verdict": "invalid", "reason": "the set is on warm only"})
        else:
            waiting.setdefault(source.path, []).append(request)
    dataset.to_prove = waiting


PROVE = base.ShardActivity(
    kind="prove",
    module="stoker.shards.format.proof_worker",
    is_reusable=True,
    begin=_begin_proof,
    on_done=_read,
)


def _proven(dataset: DatasetState, source: Source, proof: Mapping[str, Any]) -> Iterator[Effect]:
    """Records that the source's set is published on hot and proven."""
    key, books = dataset.key(source), proof["books"]
    dataset.retries.succeeded(source.path)
    dataset.hot.published.add(key[:KEY16])
    if dataset.sources.owner(source.sha256) not in (None, source.path):
        return  # one content has one set: the schedule makes this source a duplicate
    about = {"books": Books.from_mapping(books), "manifest_sha256": proof["manifest_sha256"]}
    done = source.moved("proven", key=key, **about, reason=None, deaths=())
    yield Write(done)
    dataset.discard_build(done)
    yield event(
        "source_proven",
        path=source.path,
        key=key[:KEY16],
        documents=books["documents"],
        tokens=books["tokens"],
        dropped=sum((books["dropped"] or {}).values()),  # unknown for imported sets
    )
