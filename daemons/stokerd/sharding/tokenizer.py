"""The tokenizer's way: wait for its files, train or take over in a worker, pin the dataset to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.corpus.records.listing import Listing
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.tokenizer_files import TrainingSet
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.store.errors import DataError, UnavailableError
from stokerd.sharding.disks import TRIES_ONCE
from stokerd.sharding.outcomes import SourceOutcomes
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import ACTIVITIES, FLAW_FIELDS, ShardTasks

TOKENIZER = "/tokenizer"  # no source's path begins with a slash


class TokenizerDesk:
    """`training` is what the tokenizer is to be trained on, None when there is nothing to train."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        crew: WorkerPool[Any],
        patience: Retries,
        pinning: Pinning,
        tasks: ShardTasks,
        book: SourceBook,
        outcomes: SourceOutcomes,
    ) -> None:
        self._context, self._crew, self._patience = context, crew, patience
        self._pinning, self._tasks, self._book, self._outcomes = pinning, tasks, book, outcomes
        self.training: TrainingSet | None = None

    @property
    def contents(self) -> frozenset[str]:
        """The contents on hot that the tokenizer is to be trained on."""
        return frozenset(sha256 for _, sha256 in self.training.files) if self.training else frozenset()

    def choose(self, listing: Listing | None) -> frozenset[str]:
        """Choose the files to train on; returns the paths that are not readable yet."""
        self.training = self._pinning.training_set(listing, self._book.sources)
        return self.training.wanted if self.training is not None else frozenset()

    def task(self) -> dict[str, Any] | None:
        """What is to be done now; None when the tokenizer is frozen or its files are not there yet."""
        if self._pinning.pin is not None:
            return None
        staged = {
            sha256: self._tasks.parquet(self._book.sources[path]) for sha256, path in self._staged().items()
        }
        if self.training is not None and not staged.keys() >= {sha256 for _, sha256 in self.training.files}:
            return None  # a worker has one of them in hand
        return self._pinning.tokenizer_task(self.training, staged)

    def _staged(self) -> dict[str, str]:
        """The path under which each content lies on hot, unconvicted."""
        return {
            source.sha256: source.path
            for source in self._book.sources.in_state("staged", "building")
            if source.path not in self._outcomes.convicted
        }

    def start_if_ready(self) -> None:
        """Start training the tokenizer, or taking the given one over."""
        task = self.task()
        if task is None or TOKENIZER in self._crew or not self._patience.allows(TOKENIZER):
            return
        job = self._crew.start(ACTIVITIES["tokenizer"], TOKENIZER, task, {})
        files = self.training.files if self.training is not None else ()
        if files:
            self._context.log.info("tokenizer_training", files=len(files))
        job.facts["sources"] = dict(zip(task.get("files", ()), files, strict=False))

    def ended(self, job: Job[Any], ended: WorkerExit, receipts: Mapping[str, Receipt]) -> None:
        """Pin the dataset; or convict what did not decode, dispute what changed, and train again."""
        if ended.result is None:
            self._failed(ended)
            return
        sources: dict[str, tuple[str, str]] = job.facts["sources"]
        staged = self._staged()
        flaws = [flaw for flaw in ended.result.get("bad") or () if sources[flaw["file"]][1] in staged]
        for flaw in flaws:
            path = staged[sources[flaw["file"]][1]]
            self._outcomes.convicted[path] = {name: flaw[name] for name in FLAW_FIELDS}
        changed = [sources[file][1] for file in ended.result.get("changed") or ()]
        for path in (staged[sha256] for sha256 in changed if sha256 in staged):
            self._outcomes.dispute(self._book.sources[path], receipts.get(path))
        used = ended.result.get("trained_on")
        trained_on = None if used is None else tuple(sources[file] for file in used)
        if "sha256" not in ended.result or any(sha256 not in staged for _, sha256 in trained_on or ()):
            return  # a file was bad, or changed meanwhile: it is trained again, on those that come first now
        self._pinning.freeze(ended.result, trained_on)

    def _failed(self, ended: WorkerExit) -> None:
        self._patience.failed(TOKENIZER)
        self._context.events.record("tokenizer_failed", level="warning", reason=ended.reason())
        if ended.code == DataError.exit_code:
            raise DataError(f"tokenizer: {ended.reason()}")
        if self._context.once and self._patience.failures(TOKENIZER) >= TRIES_ONCE:
            raise UnavailableError(f"tokenizer: {ended.reason()}")
