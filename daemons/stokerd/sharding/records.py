"""Records, requests and lists that the stage-shard loop works from, as last read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt, listing_reader, read_demand
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import Source, read_sources
from stoker.corpus.schedule.decide import differs, may_be_demanded
from stoker.kit.daemon import DaemonContext
from stoker.store.errors import UnavailableError
from stoker.store.layout import STAGE_SHARD
from stoker.store.requests import Request
from stokerd.common.files_list import insist_known, read_files_list
from stokerd.common.loop import RequestBox
from stokerd.sharding.activities import quarantine
from stokerd.sharding.activities.build import PROVE_SET
from stokerd.sharding.activities.quarantine import QuarantineState
from stokerd.sharding.activities.tokenizer import Pinning

VERBS = (PROVE_SET, *quarantine.VERBS)


class Records:
    """The records as last read, and decisions about sources that are not on record yet.

    A damaged source record is set aside; its facts are found again: the receipt names the file, the set on
    hot shows the build.
    """

    def __init__(self, context: DaemonContext) -> None:
        layout, dataset = context.layout, context.pipeline.dataset
        self.context, self.dataset = context, dataset.name
        self.sources = Catalog(read_sources(layout, self.dataset, context.set_aside))
        self.pinning = Pinning(context, self.sources)
        self.quarantine = QuarantineState(layout)
        self.is_fetched = dataset.source.spec.is_fetched
        self.demand = read_demand(layout, self.dataset)
        self.receipts: Mapping[str, Receipt] = {}
        self.is_behind = False  # whether receipts are still unread
        # The paths whose record or receipt changed; sources in work are compared with their receipts first.
        self.touched = {source.path for source in self.sources.in_state("staged", "building")}
        self.differing: set[str] = set()  # the paths whose receipt may disagree with their record
        self.demandable: set[str] = set()  # the paths that the demand may name
        self.convicted: dict[str, Finding] = {}  # findings that wait for quarantine, by path
        self.disputed: dict[str, Receipt] = {}
        self.rotten: set[str] = set()  # the keys whose copy on warm is known to be wrong
        self.requests: list[Request] = []  # unanswered
        self.to_prove: dict[str, list[Request]] = {}
        self.reached: dict[tuple[str, str], tuple[int, int]] = {}  # furthest row, by path and content
        self.xxh3: dict[str, str] = {}  # of the files staged since the start, by their sha256
        given = context.files_list
        self.only = None if given is None else read_files_list(Path(given))  # the paths of --files-list
        self._is_list_checked = self.only is None
        self._receipts = RecordDir(layout.receipts, self.dataset, Receipt.from_record, patient=True)
        self._listing = listing_reader(layout, self.dataset)
        self._box = RequestBox(layout, STAGE_SHARD, context.events)

    # Reading

    def watch(self) -> None:
        """Subscribes to receipts, listings, requests and claims."""
        layout = self.context.layout
        for directory in (layout.receipts, layout.receipts / "listings", layout.requests(STAGE_SHARD)):
            self.context.waiter.watch(directory)
        self.context.waiter.watch(layout.ledger(STAGE_SHARD).parent)

    def read(self) -> None:
        """Reads what other processes wrote; refuses unknown requests."""
        self.receipts = self._receipts.read()
        self.touched |= self._receipts.take_changed()
        self.is_behind = self._receipts.behind
        self.pinning.listing = self._listing() or self.pinning.listing
        if not self.is_behind and not self._is_list_checked:
            self._check_files_list()
        self.requests = []
        self._box.answer(dict.fromkeys(VERBS, self.requests.append))

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
    def due(self) -> float:
        """Returns when to read again without a wake-up, in monotonic seconds."""
        return self._receipts.due

    # Changes

    def put(self, source: Source) -> None:
        """Keeps a record that was written."""
        self.sources.put(source)
        self.touched.add(source.path)

    def drop(self, path: str) -> None:
        self.sources.drop(path)
        self.touched.add(path)

    def asked(self, *verbs: str) -> list[Request]:
        """Returns the unanswered requests of these verbs."""
        return [request for request in self.requests if request.verb in verbs]

    def answered(self, request: Request) -> None:
        """Forgets a request after its answer."""
        self.requests = [one for one in self.requests if one.id != request.id]

    def takes(self, path: str) -> bool:
        """Returns whether --files-list selects a path; without the option it selects every path."""
        return self.only is None or path in self.only

    def compare_touched(self) -> None:
        """Updates `differing` and `demandable` for the paths whose record or receipt changed."""
        for path in self.touched:
            source, receipt = self.sources.get(path), self.receipts.get(path)
            (self.differing.add if differs(source, receipt) else self.differing.discard)(path)
            may_be = self.is_fetched and may_be_demanded(source, receipt)
            (self.demandable.add if may_be else self.demandable.discard)(path)
        self.touched.clear()
