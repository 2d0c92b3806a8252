"""A dataset as a value: its records and its pin, its files and sets, its limits and its situation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt, listing_reader, read_demand
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import Source, read_sources
from stoker.corpus.schedule.decide import differs, may_be_demanded
from stoker.corpus.schedule.state import Limits, Situation
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.workers.pool import Job
from stoker.store.errors import UnavailableError
from stoker.store.requests import Request
from stokerd.common.files_list import insist_known, read_files_list
from stokerd.sharding.machine import Machine
from stokerd.sharding.needs import Needs
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.runs import Placement


class DatasetState:
    """The facts of one dataset, beside the slices of the machine that it works with.

    A damaged source record is set aside; its facts are found again: the receipt names the file, the set on
    hot shows the build.
    """

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.context, self.name = machine, machine.context, name
        self.hot, self.warm, self.pool = machine.hot, machine.warm, machine.pool
        self.pauses, self.retries, self.progress = machine.pauses, machine.pauses.retries, machine.progress
        context, layout = self.context, self.context.layout
        pipeline = self.pipeline = context.pipeline
        self.sources = Catalog(read_sources(layout, name, context.set_aside))
        self.pinning = Pinning(context, self.sources)
        self.is_fetched = pipeline.dataset.source.spec.is_fetched
        lands_on_hot, stage = self.is_fetched and self.warm is None, pipeline.stage
        self.needs = Needs(self.sources, self.pinning, self.hot, stage.free_floor, lands_on_hot)
        self.placement = Placement()
        self.limits = Limits(1, 1, stage.queue_files, stage.queue_bytes, pipeline.shard.release)
        self.situation: Situation | None = None  # the facts of the last decision, None without any
        self.settle_due = 0.0  # the latest time to write the demand and the pin's listing
        self.demand = read_demand(layout, name)
        self.receipts: Mapping[str, Receipt] = {}
        self.is_behind = False  # whether receipts are still unread
        # The paths whose record or receipt changed; sources in work are compared with their receipts first.
        self.touched = {source.path for source in self.sources.in_state("staged", "building")}
        self.differing: set[str] = set()  # the paths whose receipt may disagree with their record
        self.demandable: set[str] = set()  # the paths that the demand may name
        self.convicted: dict[str, Finding] = {}  # findings that wait for quarantine, by path
        self.disputed: dict[str, Receipt] = {}
        self.rotten: set[str] = set()  # the keys whose copy on warm is known to be wrong
        self.to_prove: dict[str, list[Request]] = {}
        self.reached: dict[tuple[str, str], tuple[int, int]] = {}  # furthest row, by path and content
        self.xxh3: dict[str, str] = {}  # of the files staged since the start, by their sha256
        given = context.files_list
        self.only = None if given is None else read_files_list(Path(given))  # the paths of --files-list
        self._is_list_checked = self.only is None
        self._receipts = RecordDir(layout.receipts, name, Receipt.from_record, patient=True)
        self._listing = listing_reader(layout, name)

    # Reading what other processes wrote

    def read(self) -> None:
        self.receipts = self._receipts.read()
        self.touched |= self._receipts.take_changed()
        self.is_behind = self._receipts.behind
        self.pinning.listing = self._listing() or self.pinning.listing
        if not self.is_behind and not self._is_list_checked:
            self._check_files_list()

    def _check_files_list(self) -> None:
        """Refuses a list with unknown files, once a listing exists; --once does not wait for a listing."""
        listing = self.pinning.listing
        if listing is not None:
            known = {*listing.paths, *self.receipts, *self.sources}
            insist_known(self.only or (), known, "the listing of the source")
            self._is_list_checked = True
        elif self.context.once:
            raise UnavailableError(
                "--files-list cannot be checked: no file of the source is listed yet; run "
                "`stoker-download-watchdog FILE --once` first"
            )

    @property
    def read_due(self) -> float:
        """When to read again without a wake-up, in monotonic seconds."""
        return self._receipts.due

    # Its records

    def put(self, source: Source) -> None:
        """Keeps a record that was written."""
        self.sources.put(source)
        self.touched.add(source.path)

    def drop(self, path: str) -> None:
        self.sources.drop(path)
        self.touched.add(path)

    def compare_touched(self) -> None:
        """Updates `differing` and `demandable` for the paths whose record or receipt changed."""
        for path in self.touched:
            source, receipt = self.sources.get(path), self.receipts.get(path)
            (self.differing.add if differs(source, receipt) else self.differing.discard)(path)
            may_be = self.is_fetched and may_be_demanded(source, receipt)
            (self.demandable.add if may_be else self.demandable.discard)(path)
        self.touched.clear()

    # Its files and sets

    def key(self, source: Source) -> str:
        """Returns the key of the source's set in the pinned build."""
        key_of = self.pinning.key_of()
        assert key_of is not None  # no build or proof begins before the dataset is pinned
        return key_of(source.sha256)

    def parquet(self, source: Source) -> str:
        """Returns the path of the source's file on hot."""
        return str(self.pipeline.hot_layout.parquet / parquet_name(source))

    def set_on(self, place: str, source: Source, key: str | None = None) -> Path:
        """Returns the path of the source's set on hot or warm."""
        layout = self.pipeline.hot_layout if place == "hot" else self.pipeline.warm_layout
        assert layout is not None  # moves to warm need a warm disk
        return layout.shard_set(source.dataset, str(key or source.key))

    def discard_parquet(self, source: Source) -> None:
        """Queues the source's file on hot for removal."""
        self.hot.discard(self.parquet(source), of=source.path)

    def discard_build(self, source: Source) -> None:
        """Queues the source's partial set for removal."""
        if source.key is not None:
            name = str(self.pipeline.hot_layout.building / source.key16)
            self.hot.discard(name, f"{name}.lock")

    # Its jobs

    def jobs(self, kind: str) -> list[Job[Any]]:
        """Returns the dataset's jobs of a kind, with those that the kernel does not let go."""
        return [job for job in self.pool.jobs if job.kind == kind and job.facts.dataset == self.name]

    def doing(self, kind: str) -> list[str]:
        """Returns the subjects of the dataset's running jobs of a kind."""
        return [job.subject for job in self.jobs(kind) if not job.abandoned]
