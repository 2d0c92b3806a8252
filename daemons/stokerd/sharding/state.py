"""The stage-shard loop's state as plain facts, changed by Effects and by the handlers of jobs."""

from __future__ import annotations

import time

from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.machine import Machine
from stokerd.sharding.work import Work


class State(Machine):
    """The machine, and the datasets made on it: one today."""

    def __init__(self, context: DaemonContext, pool: WorkerPool[Work] | None = None) -> None:
        super().__init__(context, pool)
        self.datasets = {name: DatasetState(self, name) for name in (context.pipeline.dataset.name,)}

    @property
    def dataset(self) -> DatasetState:
        """The one dataset, which status and metrics show."""
        (dataset,) = self.datasets.values()
        return dataset

    def of(self, job: Job[Work]) -> DatasetState:
        """Returns the dataset that a job works on."""
        return self.datasets[job.facts.dataset]

    def watch(self) -> None:
        """Subscribes to receipts, listings, requests, claims and runs."""
        layout = self.context.layout
        folders = (layout.receipts, layout.receipts / "listings", layout.requests(STAGE_SHARD))
        for folder in (*folders, layout.ledger(STAGE_SHARD).parent):
            self.context.waiter.watch(folder)
        self.runs.watch()

    def claim_space(self) -> None:
        """Brings the ledger in line with the work: the other daemons grant space by it."""
        datasets = self.datasets.values()
        self.space.claim(self.disks, [each.needs.claims(each.jobs("build"), each.doing) for each in datasets])

    def stamp(self) -> object:
        """Returns a value that changes with a record, a job, or a disk's availability or measure."""
        disks = [(disk.is_known, disk.is_measured) for disk in self.disks]
        return [each.sources.changes for each in self.datasets.values()], self.pool.busy, disks

    @property
    def next_due(self) -> float:
        """The next time, on the monotonic clock, at which work is due without a wake-up."""
        now, reads = time.monotonic(), (each.read_due for each in self.datasets.values())
        dues = (*self.pauses.retries.not_before.values(), self.runs.due)
        return min((*reads, *(due for due in dues if due > now)), default=float("inf"))
