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


class StateLayout:
    """The state directory of one pipeline; making paths touches no disk, only create() does."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.locks = state / "locks"
        self.run_lock = self.locks / "run.lock"  # of `stoker run`
        # Shared while sets are being named in a plan, exclusive while they are evicted.
        self.shard_sets_lock = self.locks / "shard-sets.lock"
        self.requests_done = state / "requests" / "done"
        self.receipts = state / "receipts"
        self.sources = state / "sources"
        self.datasets = state / "datasets"
        self.quarantine = state / "quarantine"
        self.runs = state / "runs"
        self.demand = state / "ledger" / "demand.json"  # what the stage-shard loop wants of the landing
        self.owner_lock = state / ".stoker-owner.lock"  # names the pipeline whose state this is

    def create(self) -> None:
        """Make what is missing of the tree, durably."""
        make_dir(self.state)
        for directory in (
            *(self.locks, self.receipts, self.receipts / "listings", self.sources, self.datasets),
            *(self.datasets / "tokenizers", self.quarantine, self.state / "ledger", self.runs),
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

    def lock(self, daemon: str) -> Path:
        """The lock a daemon holds for its life."""
        return self.locks / f"{_known(daemon)}.lock"

    def requests(self, daemon: str) -> Path:
        """Where others ask this daemon for something."""
        return self.state / "requests" / _known(daemon)

    def listing(self, dataset: str) -> Path:
        """The record of what the source holds."""
        return self.receipts / "listings" / f"{dataset}.json"

    def receipt(self, dataset: str, path: str) -> Path:
        return self.receipts / f"{record_name(dataset, path)}.json"

    def source(self, dataset: str, path: str) -> Path:
        return self.sources / f"{record_name(dataset, path)}.json"

    def dataset(self, name: str) -> Path:
        """The record that pins a dataset's build."""
        return self.datasets / f"{name}.json"

    def tokenizer(self, dataset: str, version: int) -> Path:
        """The tokenizer.json frozen for a dataset's version."""
        return self.datasets / "tokenizers" / f"{dataset}-v{version}.json"

    def ledger(self, daemon: str) -> Path:
        """What this daemon claims of each file system."""
        return self.state / "ledger" / f"{_known(daemon)}.json"

    def run(self, name: str) -> RunLayout:
        return RunLayout(self.runs / name)

    def ballast(self, daemon: str) -> Path:
        """Room that this daemon keeps for a full disk."""
        return self.state / f".ballast-{_known(daemon)}"

    def events(self, daemon: str) -> Path:
        """The log of what happened to this daemon."""
        return self.state / "events" / f"{_known(daemon)}.jsonl"


class RunLayout:
    """One run's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "run.json"
        self.launch = root / "launch.json"  # what the supervisor tells the trainer of its current launch
        self.plan = root / "plan.jsonl"
        self.timelines = root / "timelines.jsonl"
        self.consumed = root / "consumed.json"
        self.launches = root / "launches.jsonl"  # from which step each launch went, and with which settings
        self.mirror = root / "mirror.json"  # what the mirror of the checkpoints held at the last look
        self.waiting = root / "waiting.json"  # how long the plan has waited for files that are missing
        self.heldout = root / "heldout.bin"
        self.checkpoints = root / "checkpoints"
        self.abandoned = root / "abandoned"  # checkpoints past the fork of a rollback
        self.log = root / "log"
        self.metrics = self.log / "metrics.jsonl"
        self.trainer_lock = (
            root / "trainer.lock"
        )  # held from before a launch until the trainer's tree is gone
        self.rank0_lock = root / "rank0.lock"  # opened by path and held by rank 0 itself

    def create(self) -> None:
        """Make what is missing of the run's directories, durably."""
        for directory in (self.root, self.checkpoints, self.abandoned, self.log):
            make_dir(directory)


class _DiskLayout:
    """What hot and warm have both. Only workers touch them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trash = root / ".trash"  # shard sets that were given up: renamed here at once, deleted later
        self.owner_lock = root / DISK_LOCK  # keeps two pipelines off one directory

    def landing(self, dataset: str) -> Path:
        """Where a dataset's downloads land; on hot in a pipeline without a warm disk."""
        return self.root / "landing" / dataset

    def shards(self, dataset: str) -> Path:
        """The shard sets of a dataset, or their copies."""
        return self.root / "shards" / dataset

    def shard_set(self, dataset: str, key: str) -> Path:
        """The directory of one shard set; key is the whole 64 hex."""
        return self.shards(dataset) / key[:16]


class HotLayout(_DiskLayout):
    """The fast disk: parquet in work and shard sets in use."""

    def __init__(self, hot: Path) -> None:
        super().__init__(hot)
        self.hot, self.parquet, self.building = hot, hot / "parquet", hot / ".building"


class WarmLayout(_DiskLayout):
    """The big slow disk: copies of proven shard sets and of checkpoints."""

    def __init__(self, warm: Path) -> None:
        super().__init__(warm)
        self.warm = warm

    def checkpoints(self, run: str) -> Path:
        """The mirror of a run's checkpoints."""
        return self.root / "checkpoints" / run


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
