"""The download watchdog on a bad line: it and its workers die, and every byte is true in the end.

Each file meets faults drawn from the seed, and some are released while others still come. What came is held
against the hub's own sums. Of the files that only stalls, resets, refusals and kills befell, few bytes may
have come twice; those that a fault forces to come again are told apart.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from chaos.besieged import BesiegedScenario, Place
from chaos.driver import Launch
from chaos.job import Job
from stoker.corpus.fetch.landing import EVIDENCE, PARTS
from stoker.corpus.records.receipts import Demand, Unneeded, read_listing, write_demand
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.requests import pending_requests
from support.bad_line import BARE, GENTLE, HARSH, SMALL, BadLine, BadUrls, Sizes
from support.loopback_hub import LoopbackHub
from support.siege import Siege
from support.striking import Blow, Striker
from support.waiting import wait_until
from support.watchdogs import landed, pretend_built

FULL = Sizes(gentle=85, harsh=15, small=12, size=4_000_000, rate=2_000_000, listing_faults=12)
FEW = Sizes(gentle=6, harsh=2, small=2, size=800_000, rate=2_000_000, listing_faults=2)
URLS = Sizes(gentle=20, harsh=5, small=5, size=4_000_000, rate=2_000_000, listing_faults=0, bare=20)
HANDS = 4
TWICE = 0.05  # of the content may come twice
# What a kill may cost: what each hand had not written yet, and the kernel had for it: more on a busy machine.
A_KILL = HANDS * (128 << 10)
FETCH = tuple(("fetch", point) for point in ("ready", "task", "start", "progress", "retry", "done"))
DAEMON = ((DOWNLOAD_WATCHDOG, "start"), (DOWNLOAD_WATCHDOG, ""), (DOWNLOAD_WATCHDOG, ""))


class DownloadScenario(BesiegedScenario):
    """A hundred files over a bad line, the watchdog and its workers killed in writes, syncs and renames."""

    name = "download"
    daemon = DOWNLOAD_WATCHDOG
    targets = ("fetch", "fetch", DOWNLOAD_WATCHDOG, "hub", "fetch")
    calls: ClassVar = {"fsync": 6, "rename": 3, "unlink": 2, "write": 12}
    timed_every = 3
    longest_s = 1.5
    limit_s = 300.0
    sizes: ClassVar[Sizes] = FULL
    released: ClassVar[int] = 10
    lines: ClassVar[type[BadLine]] = BadLine
    lister: ClassVar[str] = "hub"
    too_small: ClassVar[bool] = False  # for what a kill costs to be less than that share of it

    def __init__(self) -> None:
        self._hub: LoopbackHub | None = None
        self._watch: CompletionWatch | None = None
        self._steps = self._rounds = 0
        self._told: list[str] = []

    def start(self, directory: Path) -> None:
        self._rounds += 1
        self.random = random.Random(f"{self.seed} {self._rounds}")
        self._hub = LoopbackHub(directory / "hub")
        self._hub.__enter__()
        self.line = self.lines(self._hub, self.sizes, self.random.randrange(1 << 30))
        self.data = self.line.pipeline(directory, download__files_at_once=HANDS, download__stall="6s")
        self.striker = Striker(directory / "strikes")
        environ = {"HF_TOKEN": "", "NO_PROXY": "*", "CREDENTIALS_DIRECTORY": "", **self.striker.environ}
        self.siege = Siege(self.data, (DOWNLOAD_WATCHDOG,), environ=environ, never_exits=True)
        self.asked: dict[str, Unneeded] = {}
        self._first = self._steps  # of this round
        self._watch = CompletionWatch(self)
        self._watch.start()

    def step(self, launch: Launch) -> Job:
        self._await_share(min(1.0, self._steps / max(1, self.kills)))
        self._release_one()
        self._steps += 1
        return super().step(launch)

    def _await_share(self, share: float) -> None:
        """Wait for as much of the content as is due before this share of the kills."""
        due = 0.9 * share * self.line.bytes_of(GENTLE, HARSH, SMALL)

        def far_enough() -> bool:
            assert self.siege is not None
            self.siege.tend()
            return self._here() >= due or self.is_over()

        wait_until(far_enough, self.limit_s, f"{due:.0f} bytes")

    def _here(self) -> int:
        """Bytes that came and stay."""
        gone = {path for path, receipt in self.data.receipts().items() if receipt.state == "released"}
        files = self.line.files
        root = self.data.pipeline.source_root
        return sum(files[path].size for path in gone) + sum(map(size_of, root.rglob("*")))

    def _release_one(self) -> None:
        receipts = self.data.receipts()
        due = self.released * self._steps / max(1, self.kills)
        for path, receipt in receipts.items():
            if len(self.asked) >= due:
                return
            if receipt.state == "verified" and path not in self.asked:
                pretend_built(self.data, path)
                self.asked[path] = Unneeded(receipt.sha256, path)
                write_demand(self.data.pipeline.layout, receipt.dataset, Demand(self.asked, {}))

    def places(self) -> list[Place]:
        return [*FETCH, *FETCH, *DAEMON, (self.lister, "task")]

    def blow(self, place: Place, call: str, when: int) -> Blow:
        name, point = place
        if name == self.lister:
            return Blow(f"stoker.corpus.source.{name}_worker", point, "write", min(when, 3))
        if name == "fetch":
            return Blow(
                "stoker.corpus.fetch.fetch_worker", point, call, min(when, 4 if call == "unlink" else when)
            )
        return Blow(f"stokerd.{name}", point, call, when)

    def needs_a_start(self, target: str) -> bool:
        return target == self.lister  # it lists, and ends

    def is_over(self) -> bool:
        data = self.data
        listing = read_listing(data.pipeline.layout, "prose")
        if listing is None or not listing.complete or pending_requests(data.pipeline.layout, self.daemon):
            return False
        states = {path: receipt.state for path, receipt in data.receipts().items()}
        wanted = {path: "released" if path in self.asked else "verified" for path in self.line.files}
        return states == wanted and not any((data.pipeline.source_root / PARTS).iterdir())

    def abandon(self) -> None:
        super().abandon()
        if self._watch is not None:
            self._watch.stop()
        if self._hub is not None:
            self._hub.__exit__(None, None, None)
            self._hub = None

    # What came of it

    def check(self) -> None:
        assert self._watch is not None and self._hub is not None
        self._watch.stop()
        assert not self._watch.problems, self._watch.problems
        assert self._watch.seen, "nobody ever saw the listing complete"
        data, files = self.data, self.line.files
        here = {path: sha256(content) for path, content in landed(data).items()}
        assert here.keys() == files.keys() - self.asked.keys(), here.keys() ^ files.keys()
        wrong = [path for path, digest in here.items() if digest not in files[path].contents]
        assert not wrong, wrong
        assert not (problems := list(wrong_receipts(self))), problems
        receipts = data.receipts()
        assert all(receipts[path].sha256 == digest for path, digest in here.items())
        listing = read_listing(data.pipeline.layout, "prose")
        assert listing is not None and (listing.complete, listing.revision) == (True, self.line.revision)
        assert dict(listing.files) == {path: receipts[path].size for path in files}
        assert not (left := self.leftovers()), left
        for word in ("download_given_up", "record_damaged", "receipt_disputed", "source_changed"):
            assert not data.events(DOWNLOAD_WATCHDOG, word), data.events(DOWNLOAD_WATCHDOG, word)
        told = data.events(DOWNLOAD_WATCHDOG, "listing_complete")
        assert len(told) <= 1, told
        self._count_bytes()

    def leftovers(self) -> list[str]:
        """Files that nobody needs any more."""
        pipeline = self.data.pipeline
        parts = [str(path) for path in (pipeline.source_root / PARTS).iterdir()]
        parts += [str(place) for place in self._evidence() if len(list(place.iterdir())) != 2]
        both = [*pipeline.state.rglob("*"), *pipeline.hot.rglob("*")]
        return parts + [str(path) for path in both if path.name.startswith(".tmp")]

    def _count_bytes(self) -> None:
        assert self._hub is not None
        kills = min(self._steps, self.kills) - self._first
        content, served = self.line.bytes_of(GENTLE), self.line.served(GENTLE)
        twice = served - content
        others = {"small ones, wrong bytes, changed tags, lost ranges": (HARSH, SMALL), "no sum": (BARE,)}
        struck = Counter(self._hub.control("struck"))
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(struck.items()))
        self._told.append(
            f"{content / 1e6:.1f} MB of stalls, resets, refusals: {served / content:.4f} x served, "
            f"{twice / max(1, kills) / 1e3:.0f} KB twice a kill"
        )
        for name, words in others.items():
            if size := self.line.bytes_of(*words):
                self._told.append(f"{size / 1e6:.1f} MB of {name}: {self.line.served(*words) / size:.4f} x")
        self._told.append(f"{struck.total()} faults: {faults}")
        self._told.append(f"{len(self.asked)} files released, evidence of {len(self._evidence())} kept")
        most = TWICE * content + (kills * A_KILL if self.too_small else 0)
        assert twice <= most, f"{twice} bytes came twice, {most:.0f} may"

    def _evidence(self) -> list[Path]:
        place = self.data.pipeline.source_root / EVIDENCE
        return list(place.iterdir()) if place.is_dir() else []

    def notes(self) -> tuple[str, ...]:
        return tuple(self._told)


class TinyDownloadScenario(DownloadScenario):
    """The same with eighteen small files, within half a minute or so."""

    name = "tiny-download"
    sizes = FEW
    released = 2
    too_small = True
    longest_s = 0.5


class UrlsDownloadScenario(DownloadScenario):
    """The same from a list of URLs, half of them without a sum, some of these with other content soon."""

    name = "download-urls"
    targets = ("fetch", "fetch", DOWNLOAD_WATCHDOG, "urls", "fetch")
    sizes = URLS
    lines = BadUrls
    lister = "urls"
    too_small = True


class CompletionWatch(threading.Thread):
    """Looks all the time whether the listing is called complete before everything is here."""

    def __init__(self, scenario: DownloadScenario) -> None:
        super().__init__(daemon=True)
        self.seen, self.problems = 0, list[str]()
        self._scenario = scenario
        self._done = threading.Event()

    def run(self) -> None:
        layout = self._scenario.data.pipeline.layout
        while not self._done.wait(0.01 if not self.seen else 0.2):
            listing = read_listing(layout, "prose")
            if listing is not None and listing.complete:
                self.seen += 1
                self.problems += wrong_receipts(self._scenario)
                self.problems += missing_files(self._scenario, hashed=self.seen == 1)

    def stop(self) -> None:
        """End the looking."""
        self._done.set()
        if self.is_alive():
            self.join()


def wrong_receipts(scenario: DownloadScenario) -> Iterator[str]:
    """What is wrong with the receipts of a complete listing."""
    receipts: dict[str, Any] = scenario.data.receipts()
    for path in receipts.keys() ^ scenario.line.files.keys():
        yield f"{path}: a receipt for nothing, or none"
    for path, file in scenario.line.files.items():
        receipt = receipts.get(path)
        if receipt is None:
            continue
        whole = file.contents.get(receipt.sha256) == receipt.size
        if not whole or (receipt.etag, receipt.revision) != (file.identity, scenario.line.revision_of_files):
            yield f"{path}: {receipt}"
        gone = {"verified", "releasing", "released"} if path in scenario.asked else {"verified"}
        if receipt.state not in gone:
            yield f"{path}: {receipt}"


def missing_files(scenario: DownloadScenario, *, hashed: bool) -> Iterator[str]:
    """Which files of a complete listing are not here and whole."""
    root = scenario.data.pipeline.source_root
    for path, file in scenario.line.files.items():
        if path in scenario.asked:
            continue
        whole = size_of(root / path) in file.contents.values()
        if not whole or (hashed and sha256((root / path).read_bytes()) not in file.contents):
            yield f"{path} is not here, but the listing is complete"


def size_of(path: Path) -> int:
    """Of a file; 0 where there is none."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def sha256(data: bytes) -> str:
    """As hex."""
    return hashlib.sha256(data).hexdigest()
