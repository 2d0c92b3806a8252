"""Tokenizer: the job that freezes the dataset's tokenizer, and with it the pin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.corpus.readers.finding import Finding
from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.store.errors import DataError, UnavailableError
from stokerd.sharding.activities.base import ShardActivity, dispute, end_once
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Begin, Effect, event
from stokerd.sharding.work import Message, Work

SUBJECT = "/tokenizer"  # of the job; no source's path begins with a slash


@dataclass(kw_only=True)
class TokenizerWork(Work):
    """`files` are the path and sha256 of each parquet file; `percent` is the share of text read."""

    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    percent: int | None = None


def task_of(dataset: DatasetState) -> dict[str, Any] | None:
    """Returns the task that freezes the tokenizer; None when it is frozen, or its input is not complete."""
    pinning, train = dataset.pinning, dataset.pipeline.tokenizer.train
    if pinning.pin is not None:
        return None
    if pinning.given is not None:
        return {"file": pinning.given, "target": str(pinning.target)}
    if pinning.training is None or not pinning.training.ready or train is None:
        return None
    staged, contents = _staged(dataset), pinning.training_contents
    if not staged.keys() >= set(contents):
        return None  # a worker is using one of the files
    return {
        "files": [dataset.parquet(dataset.sources[staged[sha256]]) for sha256 in contents],
        "sha256": contents,
        "text_column": dataset.pipeline.dataset.text_column,
        "vocab_size": train.vocab_size,
        "train_bytes": train.train_bytes,
        "target": str(pinning.target),
    }


def _begin(dataset: DatasetState, _subject: str) -> Iterator[Effect]:
    """Starts to train the tokenizer, or to copy the given file."""
    task, training = task_of(dataset), dataset.pinning.training
    assert task is not None  # it is due
    files = training.files if training is not None else ()
    if files:
        dataset.context.log.info("tokenizer_training", files=len(files))
    by_file = dict(zip(task.get("files", ()), files, strict=False))
    yield Begin(dataset.name, TOKENIZER, SUBJECT, task, TokenizerWork(files=by_file))


def _staged(dataset: DatasetState) -> dict[str, str]:
    """Returns the path of each content on hot by sha256, without files that wait for quarantine."""
    staged = dataset.sources.in_state("staged", "building")
    return {one.sha256: one.path for one in staged if one.path not in dataset.convicted}


def _on_message(_dataset: DatasetState, job: Job[TokenizerWork], message: Message) -> Iterator[Effect]:
    """Records the training's progress."""
    if "percent" in message:  # a worker that hashes a large file sends messages without it
        job.facts.percent = int(message["percent"])
    return iter(())


def _on_end(dataset: DatasetState, job: Job[TokenizerWork], outcome: Outcome) -> Iterator[Effect]:
    """Pins the dataset; or convicts undecodable files, disputes changed files, and trains again."""
    if not outcome.result:
        dataset.retries.failed(SUBJECT)
        yield event("tokenizer_failed", reason=outcome.reason)
        if outcome.code == DataError.exit_code:
            raise DataError(f"tokenizer: {outcome.reason}")
        end_once(dataset, SUBJECT, UnavailableError(f"tokenizer: {outcome.reason}"))
        return
    files, staged, result = job.facts.files, _staged(dataset), outcome.result
    for flaw in result.get("bad") or ():
        if (path := staged.get(files[flaw["file"]][1])) is not None:
            dataset.convicted[path] = Finding.of(flaw)
    for file in result.get("changed") or ():
        if (path := staged.get(files[file][1])) is not None:
            yield from dispute(dataset, dataset.sources[path])
    used = result.get("trained_on")
    trained_on = None if used is None else tuple(files[file] for file in used)
    if "sha256" not in result or any(sha256 not in staged for _, sha256 in trained_on or ()):
        return  # a file was bad or changed: the next training uses the files that now come first
    yield from dataset.pinning.freeze(result, trained_on)


TOKENIZER = ShardActivity(
    kind="tokenizer",
    module="stoker.shards.build.tokenizer_worker",
    silent_s=3600.0,  # the merge phase sends no messages
    begin=_begin,
    due=lambda dataset: (SUBJECT,) if task_of(dataset) else (),
    on_message=_on_message,
    on_end=_on_end,
)
