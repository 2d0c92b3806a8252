"""The paths of all files: in the state directory, a run, the hot and warm disks, the runtime directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.store.errors import UnavailableError, storage_errors
from stoker.store.files import make_dir

DOWNLOAD_WATCHDOG = "download_watchdog"
STAGE_SHARD = "stage_shard"
TRAIN_SUPERVISOR = "train_supervisor"
DAEMONS = (DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR)

DISK_LOCK, LANDING_LOCK = ".stoker-owner.lock", ".owner.lock"  # of a disk (hot, warm); of a landing
OWNER_LOCKS = frozenset((DISK_LOCK, LANDING_LOCK))

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
SYSTEM_RUNTIME = Path("/run/stoker")
_TARGETS_MODE = 0o755  # Prometheus runs as a user of its own
_SHARED_MODE = 0o2770  # members of the group write requests, whose files belong to the group


class StateLayout:
    """The paths in the state directory of a pipeline; only create() and with_records() touch the disk."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.locks = state / "locks"
        self.run_lock = self.locks / "run.lock"  # of `stoker run`
        # Shared while the supervisor adds sets to a plan, exclusive while the loop evicts sets.
        self.shard_sets_lock = self.locks / "shard-sets.lock"
        self.requests_done = state / "requests" / "done"
        self.audit = state / "audit.json"  # the verdict of the last audit that was kept
        self.notify = state / "notify.json"  # what `stoker notify` has sent
        self.receipts = state / "receipts"
        self.sources = state / "sources"
        self.datasets = state / "datasets"
        self.quarantine = state / "quarantine"
        self.runs = state / "runs"
        self.demand = state / "ledger" / "demand.json"  # files that the loop misses or no longer needs
        self.cache = state / "cache"  # compiled code; anyone may delete it, which costs a launch time
        self.owner_lock = state / DISK_LOCK  # names the pipeline that owns the state
        self._record_dirs = (
            *(self.receipts, self.receipts / "listings", self.sources),
            *(self.datasets, self.datasets / "tokenizers", state / "ledger"),
        )
        self._request_dirs = (self.requests_done, *map(self.requests, DAEMONS))

    def create(self) -> None:
        """Makes the missing directories, durably."""
        own = (self.locks, self.quarantine, self.runs, self.state / "events", self.state / "samples")
        for directory in (self.state, *own, *self._record_dirs):
            make_dir(directory)
        for directory in (self.state / "requests", *self._request_dirs):
            make_dir(directory, _SHARED_MODE)
            _share(directory)

    def with_records(self) -> list[Path]:
        """Returns the directories with records and other atomic files, also those of the existing runs."""
        runs = (path for path in self.runs.iterdir() if path.is_dir())
        return [*self._record_dirs, *self._request_dirs, self.state / "samples", *runs]

    def lock(self, daemon: str) -> Path:
        """Returns the lock file that a daemon holds while it lives."""
        return self.locks / f"{daemon}.lock"

    def requests(self, daemon: str) -> Path:
        """Returns the directory of requests to this daemon."""
        return self.state / "requests" / daemon

    def listing(self, dataset: str) -> Path:
        """Returns the record of the files in the source."""
        return self.receipts / "listings" / f"{dataset}.json"

    def receipt(self, dataset: str, path: str) -> Path:
        return self.receipts / f"{record_name(dataset, path)}.json"

    def source(self, dataset: str, path: str) -> Path:
        return self.sources / f"{record_name(dataset, path)}.json"

    def dataset(self, name: str) -> Path:
        """Returns the record that pins a dataset's build."""
        return self.datasets / f"{name}.json"

    def tokenizer(self, dataset: str, version: int) -> Path:
        """Returns the frozen tokenizer.json of a dataset's version."""
        return self.datasets / "tokenizers" / f"{dataset}-v{version}.json"

    def ledger(self, daemon: str) -> Path:
        """Returns the record of this daemon's claims on file systems."""
        return self.state / "ledger" / f"{daemon}.json"

    def run(self, name: str) -> RunLayout:
        return RunLayout(self.runs / name)

    def ballast(self, daemon: str) -> Path:
        """Returns the file that reserves room for this daemon."""
        return self.state / f".ballast-{daemon}"

    def events(self, daemon: str) -> Path:
        """Returns the event log of this daemon."""
        return self.state / "events" / f"{daemon}.jsonl"

    def samples(self, daemon: str) -> Path:
        """Returns the table of what this daemon and its machine were like, a row a minute."""
        return self.state / "samples" / f"{daemon}.csv"


class RunLayout:
    """The paths in the directory of a run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "run.json"
        self.launch = root / "launch.json"  # the supervisor's instructions for the current launch's trainer
        self.plan = root / "plan.jsonl"
        self.timelines = root / "timelines.jsonl"
        self.consumed = root / "consumed.json"
        self.launches = root / "launches.jsonl"  # the first step and the settings of each launch
        self.runs = root / "runs.jsonl"  # how each launch ended, and where the time went
        self.goodput = root / "goodput.json"  # the account of the run's time so far
        self.evaluations_log = root / "evaluations.jsonl"  # what each evaluation found
        self.evaluations = root / "evaluations"  # their samples, and the model that is being evaluated
        self.promoted = root / "promoted.json"  # the checkpoint that evaluation promoted last
        self.told = root / "told.json"  # checkpoints that a trainer told of and that are not sealed yet
        self.mirror = root / "mirror.json"  # the checkpoints that the mirror held at the last listing
        self.waiting = root / "waiting.json"  # how long the plan has waited for missing files
        self.heldout = root / "heldout.bin"
        self.checkpoints = root / "checkpoints"
        self.abandoned = root / "abandoned"  # checkpoints past the fork of a rollback
        self.log = root / "log"
        self.metrics = self.log / "metrics.jsonl"
        self.trainer_lock = root / "trainer.lock"  # held until the last process of a launch has ended
        self.rank0_lock = root / "rank0.lock"  # opened by path and held by rank 0 itself

    def hook(self, kind: str) -> Path:
        """Returns the record of how the command of a hook last ended: hook.json or hook-promoted.json."""
        return self.root / f"{kind}.json"

    def output(self, launch: str) -> Path:
        """Returns the file with what a launch's trainer printed."""
        return self.log / f"output-{launch}.txt"

    def stacks(self, launch: str, rank: int | None = None) -> Path:
        """Returns the file that a rank dumps its stacks to; without a rank the supervisor's report on all."""
        return self.log / f"stacks-{launch}{'' if rank is None else f'-{rank}'}.txt"

    def create(self) -> None:
        """Makes the missing directories of the run, durably."""
        for directory in (self.root, self.checkpoints, self.abandoned, self.log):
            make_dir(directory)


class _DiskLayout:
    """The paths that hot and warm have in common. Only workers touch these disks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trash = root / ".trash"  # dropped shard sets: renamed into it at once, deleted later
        self.owner_lock = root / DISK_LOCK  # keeps a second pipeline out

    def landing(self, dataset: str) -> Path:
        """Returns the landing of a dataset's downloads; on hot in a pipeline without a warm disk."""
        return self.root / "landing" / dataset

    def shards(self, dataset: str) -> Path:
        """Returns the directory of a dataset's shard sets (on hot) or their copies (on warm)."""
        return self.root / "shards" / dataset

    def shard_set(self, dataset: str, key: str) -> Path:
        """Returns the directory of a shard set; key has all 64 hex digits."""
        return self.shards(dataset) / key[:16]


class HotLayout(_DiskLayout):
    """The paths on hot, the fast disk: parquet being tokenized and shard sets in use."""

    def __init__(self, hot: Path) -> None:
        super().__init__(hot)
        self.parquet, self.building = hot / "parquet", hot / ".building"


class WarmLayout(_DiskLayout):
    """The paths on warm, the big slow disk: copies of proven shard sets and of checkpoints."""

    def checkpoints(self, run: str) -> Path:
        """Returns the mirror directory of a run's checkpoints."""
        return self.root / "checkpoints" / run


@dataclass(frozen=True)
class RuntimeLayout:
    """The paths that a reboot may delete: sockets and status snapshots of a pipeline, Prometheus targets.

    `target_dir` holds the targets of all pipelines: Prometheus expands no wildcard in a directory's name.
    """

    root: Path
    target_dir: Path

    @classmethod
    def at(cls, root: Path) -> RuntimeLayout:
        """Returns the paths below a directory that holds everything."""
        return cls(root, root / "targets")

    @classmethod
    def of(cls, name: str, state: Path, environ: Mapping[str, str] = os.environ) -> RuntimeLayout:
        """Returns a pipeline's runtime directories: systemd's, else those in /run/stoker, else own ones.

        The paths are short because a socket's path has at most 107 bytes. Raises UnavailableError when a
        directory made under /tmp belongs to another user or has a wrong mode.
        """
        given = [Path(path) for path in environ.get("RUNTIME_DIRECTORY", "").split(":") if path]
        if given:  # systemd sorts them
            shared = next((path for path in given if path.name == "targets"), given[0] / "targets")
            return cls(next((path for path in given if path != shared), shared), shared)
        root, shared = SYSTEM_RUNTIME / name, SYSTEM_RUNTIME / "targets"
        if not os.access(root, os.W_OK | os.X_OK):
            digest = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:8]
            root = _own_dir(Path(f"/tmp/stoker-{os.geteuid()}-{digest}"), 0o700)  # noqa: S108 - checked
        if not os.access(shared, os.W_OK | os.X_OK):
            shared = _own_dir(Path(f"/tmp/stoker-{os.geteuid()}-targets"), _TARGETS_MODE)  # noqa: S108
        return cls(root, shared)

    def create(self) -> None:
        """Makes the missing directories; any user may list the targets."""
        modes = {self.root: 0o750, self.root / "status": 0o750, self.target_dir: _TARGETS_MODE}
        for directory, mode in modes.items():
            with storage_errors("make directory", directory):
                directory.mkdir(mode=mode, parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user's, whose mode is right
            os.chmod(self.target_dir, _TARGETS_MODE)  # the umask has removed bits

    def status(self, daemon: str) -> Path:
        """Returns the status file of a daemon."""
        return self.root / "status" / f"{daemon}.json"

    def configuration(self, daemon: str) -> Path:
        """Returns the file of the configuration that a daemon has."""
        return self.root / "status" / f"{daemon}.config.json"

    def notify_socket(self, run: str) -> Path:
        """Returns the datagram socket for the messages of a run's trainer."""
        return self.root / f"{run}.sock"

    def target(self, pipeline: str, daemon: str) -> Path:
        """Returns the Prometheus file-discovery entry of a daemon."""
        return self.target_dir / f"{pipeline}-{daemon}.json"


def record_name(dataset: str, path: str) -> str:
    """Returns the record name of a dataset's file: a readable stem, and 12 hex digits for equal stems."""
    stem = _UNSAFE.sub("", PurePosixPath(path).stem).lstrip(".")[:80] or "file"
    digest = hashlib.sha256(f"{dataset}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{stem}-{digest[:12]}"


def _own_dir(path: Path, mode: int) -> Path:
    """Makes a directory under /tmp with this mode; refuses one that another user owns or may change."""
    with storage_errors("make directory", path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
            os.chmod(path, mode)  # the umask has removed bits
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o777 & ~mode:
            raise UnavailableError(
                f"{path} is not a directory of uid {os.geteuid()} with mode {mode:o}; "
                "remove it, or name another one in RUNTIME_DIRECTORY"
            )
    return path


def _share(directory: Path) -> None:
    # A crash between mkdir and chmod leaves a wrong mode; only the owner can mend it.
    with storage_errors("share", directory):
        found = os.stat(directory)
        if found.st_mode & _SHARED_MODE != _SHARED_MODE and found.st_uid == os.geteuid():
            os.chmod(directory, _SHARED_MODE)
