"""Build: makes one source's shard set, or continues a partial set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stoker.config.units import format_bytes
from stoker.corpus.records.dataset import DatasetPin
from stoker.corpus.records.index import KEY16
from stoker.corpus.records.sources import EXCEEDS_DISK, Source
from stoker.corpus.schedule.outcome import READ_ROWS, SMALLEST, Outcome
from stoker.corpus.staging.finding import Finding
from stoker.corpus.staging.size_estimate import AGAIN, FILES_BYTES, decide_growth
from stoker.kit.workers.pool import Job
from stokerd.sharding.activities import base
from stokerd.sharding.activities.base import Message, ShardActivity, marks
from stokerd.sharding.effects import Begin, Effect, Event, Send, Write, event
from stokerd.sharding.state import BuildWork, State


def begin(state: State, path: str) -> Iterator[Effect]:
    source, pin = state.sources[path], state.records.pinning.pin
    assert pin is not None  # the schedule builds only after the pin
    building = source.moved("building", key=state.key(source))
    if building != source:
        yield Write(building)
    attempt = state.pauses.memory.attempt(path, others=bool(state.builds()))
    task = _task(state, building, pin)
    task["read_rows"] = READ_ROWS[attempt.rows]
    task["room"] = state.space.grant(state, building) - FILES_BYTES
    yield Begin(BUILD, path, task, BuildWork(attempt=attempt))


def _task(state: State, source: Source, pin: DatasetPin) -> dict[str, Any]:
    pipeline, commit = state.pipeline, state.pipeline.shard.commit
    xxh3 = state.records.xxh3.get(source.sha256, "")  # empty if staged before this daemon started
    is_reference = source.engine == base.HF_TOKENIZERS
    return {
        "parquet": state.parquet(source),
        "source": {"path": source.path, "size": source.size, "sha256": source.sha256, "xxh3": xxh3},
        "dataset": source.dataset,
        "key": source.key,
        "build_id": pin.build_id,
        "build": dict(pin.build),
        "tokenizer_file": str(pipeline.layout.datasets / pin.tokenizer.file),
        "building": str(pipeline.hot_layout.building / str(source.key)[:KEY16]),
        "target": str(state.set_on("hot", source)),
        "commit": {"every_s": commit.every, "bytes": commit.bytes},
        "commit_every_row_group": bool(source.deaths),  # to find the row group to blame
        "engine": base.HF_TOKENIZERS if is_reference else pipeline.tokenizer.engine,
        "memory": pipeline.shard.memory.model_dump(),
        "disks": marks(state.hot),
    }


def on_message(state: State, job: Job[BuildWork], message: Message) -> Iterator[Effect]:
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
            yield Write(replace(source, engine=base.HF_TOKENIZERS))
            yield base.engine_refused(source, str(message["reason"]))
    match message.get("phase"):
        case "check_engine" | "encode":
            work.is_encoding = True
        case "open":
            work.is_resumed = bool(message.get("row_group") or message.get("row"))


def on_done(state: State, job: Job[BuildWork], result: Message) -> Iterator[Effect]:
    source = state.sources[job.subject]
    _credit(state, job, source)
    if result["status"] == "target_invalid":
        yield from base.reject_set(state, source, str(result["reason"]))
        return
    state.pauses.memory.succeeded(source.path)
    state.records.xxh3.pop(source.sha256, None)
    yield from base.proven(state, source, state.key(source), result["books"], result["manifest_sha256"])


def on_end(state: State, job: Job[BuildWork], outcome: Outcome) -> Iterator[Effect]:
    source, memory = state.sources[job.subject], state.pauses.memory
    assert job.facts.attempt is not None  # set when the build began
    is_further = _credit(state, job, source)
    match outcome.kind:
        case "recycled":  # a new worker continues at once; without any progress it reads smaller batches
            yield event("worker_recycled", "debug", path=source.path, further=is_further)
            if not is_further:
                memory.read_less(source.path, min(SMALLEST, job.facts.attempt.rows + 1))
                reason = "its worker outgrew shard.memory.soft before it could commit"
                yield from base.try_again(state, job, source, reason)
        case "outgrown":
            state.hot.look_soon()  # the partial set is gone
            state.records.reached.pop((source.path, source.sha256), None)
            end = _refused(state, job, source)
            if isinstance(end, Finding):
                state.records.convicted[source.path] = end
            else:
                yield end
        case "out_of_memory" | "over_memory":
            is_machines = outcome.kind == "out_of_memory"
            detail = memory.failed(source.path, job.facts.attempt, outcome.reason, is_machines=is_machines)
            if detail is not None:
                finding = Finding("out_of_memory", detail, job.facts.row_group)
                state.records.convicted[source.path] = finding
            yield from base.try_again(state, job, source, outcome.reason, wait_s=base.RETRY_S)
        case "stalled" | "silent" if job.facts.is_encoding and base.uses_fast_engine(state, source):
            blamed = yield from base.blame(state, job, source, outcome.reason)
            yield from base.try_again(state, job, blamed, outcome.reason)
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
            work.asks, work.refused = None, growth
            yield Send(job.subject, {"room": 0})
        else:
            state.space.granted[source.path] = granted
            state.space.refresh(state)
            work.asks = None  # last: if the ledger cannot be written, the answer comes later
            yield Send(job.subject, {"room": granted - FILES_BYTES})


def _refused(state: State, job: Job[BuildWork], source: Source) -> Finding | Event:
    """Returns the finding or the event of a build that ended because it got no space."""
    growth = job.facts.refused
    assert growth is not None  # set with the refusal that ended the build
    is_hopeless = growth.is_hopeless
    state.space.set_back(state, source, None if is_hopeless else int(growth.needed * AGAIN))
    figures = {"needed_bytes": growth.needed, "expected_bytes": growth.expected}
    if is_hopeless:
        detail = (
            f"its shard set took {format_bytes(growth.needed)} and was not done, where "
            f"{format_bytes(growth.expected)} were expected; hot has {format_bytes(growth.most)} for it"
        )
        figures["room_bytes"] = growth.most
        return Finding(EXCEEDS_DISK, detail, job.facts.row_group, figures=figures)
    reason = (
        f"its shard set needs more than the {format_bytes(growth.limit)} it may have on hot now; "
        "it begins again once there is more room"
    )
    about = {**figures, "room_bytes": growth.limit}
    return event("build_set_back", "warning", path=source.path, reason=reason, **about)


BUILD = ShardActivity(
    kind="build",
    module="stoker.shards.build.build_worker",
    stall_s=base.STALL_S,
    is_memory_bound=True,
    is_reusable=True,
    begin=begin,
    on_message=on_message,
    on_done=on_done,
    on_end=on_end,
    writes_to="hot",
)
