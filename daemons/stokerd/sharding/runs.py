"""What the runs hold and want of the shard sets, as their plans say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.daemon import DaemonContext
from stoker.plan.consumption import Holdings, read_holdings
from stoker.plan.residency import ShardSet
from stoker.store.errors import DataError, storage_errors
from stokerd.sharding.effects import Alert, AlertOver, Effect


@dataclass(frozen=True)
class HydrationDemand:
    """What the runs want: paths to bring back now, all wanted paths, the number of them not on hot, and the
    bytes of those that wait; `is_blocked`: they wait for space, not for their turn."""

    hydrate: tuple[str, ...] = ()
    wanted: frozenset[str] = frozenset()
    cold_bytes: int = 0
    cold: int = 0
    is_blocked: bool = False


@dataclass
class Placement:
    """What was decided for a dataset's sets; `why` is the reason why no more of them can leave hot."""

    wants: HydrationDemand = HydrationDemand()
    why: str = ""
    tried: int = -1  # the records' change count at the last try to evict
    # All published sets and each set's path by key, with the inputs that they are made of.
    sets: tuple[object, list[ShardSet], dict[str, str]] | None = None


class Runs:
    """The runs' holdings as last read. With a damaged plan all sets stay on hot."""

    def __init__(self, context: DaemonContext) -> None:
        self._context, self.layout = context, context.layout
        self.holdings: list[Holdings] = []
        self.is_damaged = False
        self._seen: object = None
        self.due = 0.0  # when to try again to evict, monotonic seconds

    def refresh(self) -> Iterator[Effect]:
        """Reads what the runs hold if that changed."""
        seen = _fingerprint(self.layout.runs)
        if seen == self._seen:
            return
        self._seen, self.due = seen, 0.0
        self.watch()
        try:
            self.holdings = read_holdings(self.layout)
        except DataError as error:
            self.is_damaged = True
            reason = f"{error}; until then no shard set leaves hot"
            yield Alert("plan_unreadable", fields={"reason": reason})
        else:
            self.is_damaged = False
            yield AlertOver("plan_unreadable")

    def watch(self) -> None:
        """Subscribes to changes of the runs directory and of each run."""
        runs = self.layout.runs
        self._context.waiter.watch(runs)
        with contextlib.suppress(FileNotFoundError):
            for run in runs.iterdir():
                self._context.waiter.watch(run)

    @property
    def is_consuming(self) -> bool:
        """Whether an unfinished run has a plan: its progress will free space."""
        return any(run.plan.windows and not run.finished for run in self.holdings)


def _fingerprint(runs: Path) -> object:
    """Returns a value that changes when a run comes or goes, or its plan or consumed.json is written."""
    found = []
    with storage_errors("read", runs), contextlib.suppress(FileNotFoundError):
        for run in sorted(runs.iterdir()):
            for name in ("plan.jsonl", "consumed.json"):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    about = (run / name).stat()
                    found.append((run.name, name, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)
