"""Where everything is: the state directory, a run in it, the hot disk, and the runtime directory."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.store.errors import UnavailableError, UsageError, storage_errors
from stoker.store.files import make_dir
from stoker.store.names import record_name

DOWNLOAD_WATCHDOG = "download_watchdog"
STAGE_SHARD = "stage_shard"
TRAIN_SUPERVISOR = "train_supervisor"
DAEMONS = (DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR)

DISK_LOCK, LANDING_LOCK = ".stoker-owner.lock", ".owner.lock"  # of hot and warm, of a landing
OWNER_LOCKS = frozenset((DISK_LOCK, LANDING_LOCK))

_SHARED_MODE = 0o2770  # members of the group file requests, and what they file belongs to the group


@dataclass(frozen=True)
class StateLayout:
    """The state directory of one pipeline; making paths touches no disk, only create() does."""

    state: Path

    def create(self) -> None:
        """Make what is missing of the tree, durably."""
        make_dir(self.state)
        for directory in (
            self.locks,
            self.receipts,
            self.receipts / "listings",
            self.sources,
            self.datasets,
            self.datasets / "tokenizers",
            self.quarantine,
            self.state / "ledger",
            self.runs,
            self.state / "events",
        ):
            make_dir(directory)
        for directory in (self.state / "requests", self.requests_done, *map(self.requests, DAEMONS)):
            make_dir(directory, _SHARED_MODE)
            _share(directory)

    def with_records(self) -> list[Path]:
        """The directories that records are written in, those of the runs there are included."""
        runs = [path for path in self.runs.iterdir() if path.is_dir()]
        return [
            *(self.receipts, self.receipts / "listings", self.sources, self.datasets),
            *(self.datasets / "tokenizers", self.state / "ledger", self.requests_done),
            *(self.requests(daemon) for daemon in DAEMONS),
            *runs,
        ]

    @property
    def locks(self) -> Path:
        return self.state / "locks"

    def lock(self, daemon: str) -> Path:
        """The lock a daemon holds for its life."""
        return self.locks / f"{_known(daemon)}.lock"

    @property
    def run_lock(self) -> Path:
        """The lock of `stoker run`."""
        return self.locks / "run.lock"

    @property
    def shard_sets_lock(self) -> Path:
        """Shared while sets are being named in a plan, exclusive while they are evicted."""
        return self.locks / "shard-sets.lock"

    def requests(self, daemon: str) -> Path:
        """Where others ask this daemon for something."""
        return self.state / "requests" / _known(daemon)

    @property
    def requests_done(self) -> Path:
        return self.state / "requests" / "done"

    @property
    def receipts(self) -> Path:
        return self.state / "receipts"

    def listing(self, dataset: str) -> Path:
        """The record of what the source holds."""
        return self.receipts / "listings" / f"{dataset}.json"

    def receipt(self, dataset: str, path: str) -> Path:
        """The receipt record of a dataset's file."""
        return self.receipts / f"{record_name(dataset, path)}.json"

    @property
    def sources(self) -> Path:
        return self.state / "sources"

    def source(self, dataset: str, path: str) -> Path:
        """The source record of a dataset's file."""
        return self.sources / f"{record_name(dataset, path)}.json"

    @property
    def datasets(self) -> Path:
        return self.state / "datasets"

    def dataset(self, name: str) -> Path:
        """The record that pins a dataset's build."""
        return self.datasets / f"{name}.json"

    def tokenizer(self, dataset: str, version: int) -> Path:
        """The tokenizer.json frozen for a dataset's version."""
        return self.datasets / "tokenizers" / f"{dataset}-v{version}.json"

    @property
    def quarantine(self) -> Path:
        return self.state / "quarantine"

    def ledger(self, daemon: str) -> Path:
        """What this daemon claims of each file system."""
        return self.state / "ledger" / f"{_known(daemon)}.json"

    @property
    def demand(self) -> Path:
        """Which fetched files the stage-shard loop needs no more, and which it misses."""
        return self.state / "ledger" / "demand.json"

    @property
    def runs(self) -> Path:
        return self.state / "runs"

    def run(self, name: str) -> RunLayout:
        """A run's own directory."""
        return RunLayout(self.runs / name)

    @property
    def owner_lock(self) -> Path:
        """Names the pipeline whose state this is."""
        return self.state / ".stoker-owner.lock"

    def ballast(self, daemon: str) -> Path:
        """Room that this daemon keeps for a full disk."""
        return self.state / f".ballast-{_known(daemon)}"

    def events(self, daemon: str) -> Path:
        """The log of what happened to this daemon."""
        return self.state / "events" / f"{_known(daemon)}.jsonl"


@dataclass(frozen=True)
class RunLayout:
    """One run's directory."""

    root: Path

    def create(self) -> None:
        """Make what is missing of the run's directories, durably."""
        for directory in (self.root, self.checkpoints, self.abandoned, self.log):
            make_dir(directory)

    @property
    def record(self) -> Path:
        return self.root / "run.json"

    @property
    def launch(self) -> Path:
        """What the supervisor tells the trainer of its current launch."""
        return self.root / "launch.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.jsonl"

    @property
    def timelines(self) -> Path:
        return self.root / "timelines.jsonl"

    @property
    def consumed(self) -> Path:
        return self.root / "consumed.json"

    @property
    def launches(self) -> Path:
        """The log of launches: from which step, and with which settings."""
        return self.root / "launches.jsonl"

    @property
    def mirror(self) -> Path:
        """What the mirror of the checkpoints held at the last look."""
        return self.root / "mirror.json"

    @property
    def waiting(self) -> Path:
        """How long the plan has waited for files that are missing."""
        return self.root / "waiting.json"

    @property
    def heldout(self) -> Path:
        return self.root / "heldout.bin"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def abandoned(self) -> Path:
        """Checkpoints past the fork of a rollback."""
        return self.root / "abandoned"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def metrics(self) -> Path:
        return self.log / "metrics.jsonl"

    @property
    def trainer_lock(self) -> Path:
        """Held from before a launch until the trainer's whole tree is gone."""
        return self.root / "trainer.lock"

    @property
    def rank0_lock(self) -> Path:
        """Opened by path and held by rank 0 itself."""
        return self.root / "rank0.lock"


@dataclass(frozen=True)
class HotLayout:
    """The fast disk: parquet in work and shard sets in use. Only workers touch it."""

    hot: Path

    @property
    def parquet(self) -> Path:
        return self.hot / "parquet"

    @property
    def building(self) -> Path:
        return self.hot / ".building"

    def landing(self, dataset: str) -> Path:
        """Where a dataset's downloads land in a pipeline without a warm disk."""
        return self.hot / "landing" / dataset

    def shards(self, dataset: str) -> Path:
        """The shard sets of a dataset."""
        return self.hot / "shards" / dataset

    def shard_set(self, dataset: str, key: str) -> Path:
        """The directory of one shard set; key is the whole 64 hex."""
        return self.shards(dataset) / key[:16]

    @property
    def trash(self) -> Path:
        """Shard sets that were given up: renamed here at once, deleted later."""
        return self.hot / ".trash"

    @property
    def owner_lock(self) -> Path:
        """Keeps two pipelines off one directory."""
        return self.hot / DISK_LOCK


@dataclass(frozen=True)
class WarmLayout:
    """The big slow disk: copies of proven shard sets and of checkpoints. Only workers touch it."""

    warm: Path

    def landing(self, dataset: str) -> Path:
        """Where a dataset's downloads land."""
        return self.warm / "landing" / dataset

    def shards(self, dataset: str) -> Path:
        """The copies of a dataset's shard sets."""
        return self.warm / "shards" / dataset

    def shard_set(self, dataset: str, key: str) -> Path:
        """The copy of one shard set; key is the whole 64 hex."""
        return self.shards(dataset) / key[:16]

    def checkpoints(self, run: str) -> Path:
        """The mirror of a run's checkpoints."""
        return self.warm / "checkpoints" / run

    @property
    def trash(self) -> Path:
        """Copies that were given up: renamed here at once, deleted later."""
        return self.warm / ".trash"

    @property
    def owner_lock(self) -> Path:
        """Keeps two pipelines off one directory."""
        return self.warm / DISK_LOCK


@dataclass(frozen=True)
class RuntimeLayout:
    """What a reboot may forget: sockets, status snapshots, Prometheus targets."""

    root: Path

    def create(self) -> None:
        """Make what is missing."""
        for directory in (self.root, self.root / "status", self.root / "targets"):
            with storage_errors("make directory", directory):
                directory.mkdir(mode=0o750, parents=True, exist_ok=True)

    def status(self, daemon: str) -> Path:
        """The snapshot a daemon shows of itself."""
        return self.root / "status" / f"{_known(daemon)}.json"

    def notify_socket(self, run: str) -> Path:
        """The datagram socket a run's trainer reports to."""
        return self.root / f"{run}.sock"

    def targets(self, daemon: str) -> Path:
        """The Prometheus file-discovery entry of a daemon."""
        return self.root / "targets" / f"{_known(daemon)}.json"


def runtime_dir(name: str, state: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The runtime directory: systemd's, else /run/stoker/<name>, else a private one made under /tmp.

    Kept short, for a socket's path has at most 107 bytes. UnavailableError when the private one is not ours.
    """
    given = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    system = Path("/run/stoker") / name
    if system.is_dir() and os.access(system, os.W_OK | os.X_OK):
        return system
    digest = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:8]
    return _private_dir(Path(f"/tmp/stoker-{os.geteuid()}-{digest}"))  # noqa: S108 - made 0700 and checked


def _private_dir(path: Path) -> Path:
    with storage_errors("make directory", path):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise UnavailableError(
                    f"{path} is not a private directory of uid {os.geteuid()}; "
                    "remove it, or name another one in RUNTIME_DIRECTORY"
                ) from None
    return path


def _share(directory: Path) -> None:
    # A crash between mkdir and chmod leaves the mode short; only the owner can mend it.
    with storage_errors("share", directory):
        found = os.stat(directory)
        if found.st_mode & _SHARED_MODE != _SHARED_MODE and found.st_uid == os.geteuid():
            os.chmod(directory, _SHARED_MODE)


def _known(daemon: str) -> str:
    if daemon not in DAEMONS:
        raise UsageError(f"no daemon is called {daemon!r}; there are {', '.join(DAEMONS)}")
    return daemon
