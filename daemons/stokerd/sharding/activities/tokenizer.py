"""Tokenizer: trains a tokenizer on the first files, or takes a given file, and pins the dataset to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.finding import Finding
from stoker.kit.workers.pool import Job
from stoker.store.errors import DataError, UnavailableError
from stokerd.sharding.activities.base import Message, ShardActivity, dispute
from stokerd.sharding.effects import Begin, Effect, event
from stokerd.sharding.state import TRIES_ONCE, State, Work

SUBJECT = "/tokenizer"  # no source's path begins with a slash


@dataclass(kw_only=True)
class TokenizerWork(Work):
    """`files` are the path and sha256 of each parquet file; `percent` is the share of text read."""

    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    percent: int | None = None


def is_wanted(state: State) -> bool:
    """Whether the tokenizer is not frozen yet and all its input is on hot."""
    pinning = state.records.pinning
    return pinning.pin is None and pinning.tokenizer_task(_staged_files(state)) is not None


def begin(state: State, _subject: str) -> Iterator[Effect]:
    """Starts to train the tokenizer, or to copy the given file."""
    pinning = state.records.pinning
    task = pinning.tokenizer_task(_staged_files(state))
    assert task is not None  # checked by is_wanted
    files = pinning.training.files if pinning.training is not None else ()
    if files:
        state.context.log.info("tokenizer_training", files=len(files))
    by_file = dict(zip(task.get("files", ()), files, strict=False))
    yield Begin(TOKENIZER, SUBJECT, task, TokenizerWork(files=by_file))


def _staged(state: State) -> dict[str, str]:
    """Returns the path of each content on hot by sha256, without files that wait for quarantine."""
    staged = state.sources.in_state("staged", "building")
    return {one.sha256: one.path for one in staged if one.path not in state.records.convicted}


def _staged_files(state: State) -> dict[str, str]:
    return {sha256: state.parquet(state.sources[path]) for sha256, path in _staged(state).items()}


def on_message(_state: State, job: Job[TokenizerWork], message: Message) -> Iterator[Effect]:
    """Records the training's progress."""
    if "percent" in message:  # a worker that hashes a large file sends messages without it
        job.facts.percent = int(message["percent"])
    return iter(())


def on_end(state: State, job: Job[TokenizerWork], outcome: Outcome) -> Iterator[Effect]:
    """Pins the dataset; or convicts undecodable files, disputes changed files, and trains again."""
    if not outcome.result:
        yield from _failed(state, outcome)
        return
    files, staged, result = job.facts.files, _staged(state), outcome.result
    for flaw in result.get("bad") or ():
        if (path := staged.get(files[flaw["file"]][1])) is not None:
            state.records.convicted[path] = Finding.of(flaw)
    for file in result.get("changed") or ():
        if (path := staged.get(files[file][1])) is not None:
            yield from dispute(state, state.sources[path])
    used = result.get("trained_on")
    trained_on = None if used is None else tuple(files[file] for file in used)
    if "sha256" not in result or any(sha256 not in staged for _, sha256 in trained_on or ()):
        return  # a file was bad or changed: the next training uses the files that now come first
    yield from state.records.pinning.freeze(result, trained_on)


def _failed(state: State, outcome: Outcome) -> Iterator[Effect]:
    state.retries.failed(SUBJECT)
    yield event("tokenizer_failed", "warning", reason=outcome.reason)
    if outcome.code == DataError.exit_code:
        raise DataError(f"tokenizer: {outcome.reason}")
    if state.context.once and state.retries.failures(SUBJECT) >= TRIES_ONCE:
        raise UnavailableError(f"tokenizer: {outcome.reason}")


TOKENIZER = ShardActivity(
    kind="tokenizer",
    module="stoker.shards.build.tokenizer_worker",
    silent_s=3600.0,  # the merge phase sends no messages
    begin=begin,
    due=lambda state: (SUBJECT,) if is_wanted(state) else (),
    on_message=on_message,
    on_end=on_end,
)
