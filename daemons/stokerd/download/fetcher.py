"""Drives the fetch worker: one that stays, watched by the bytes it makes durable, and started again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.corpus.fetch.selection import AHEAD, Wanted
from stoker.corpus.fetch.transfers import Transfers
from stoker.corpus.http.hub import HubRepo
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stokerd.download.fetch_waits import FetchWaits
from stokerd.download.landing_claim import LandingClaim
from stokerd.download.source_kind import Desktop
from stokerd.download.status import FetchGauges

FETCHER = "/fetcher"  # no source's path begins with a slash
MODULE = "stoker.corpus.fetch.fetch_worker"
LEAST_QUIET_S = 6.0  # it speaks every two seconds where all is well, but has to start first
LOOK_EVERY_S = 1.0
IDLE_S = 60.0  # without anything to do, after which the worker may go
MOST_RSS, RSS_A_FILE, LEAST_LIFE_S = 120 << 20, 12 << 20, 60.0
COMMIT_S, COMMIT_BYTES = 2.0, 64 << 20
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the worker was asked to bring: the content that `revision` had, whatever is listed since."""

    wanted: Wanted
    revision: str


class Fetcher:
    """`sent` are the wishes that the worker has, by path, `removing` the paths that it is to unlink."""

    def __init__(self, tools: Desktop, root: Path, repo: HubRepo | None) -> None:
        self.context, self.crew, self.patience = tools.context, tools.crew, tools.patience
        self.events, self.pipeline = self.context.events, self.context.pipeline
        self._board, self._gauges = tools.board, FetchGauges(self.context)
        self.root, self.repo = root, repo
        self.transfers = Transfers()
        self.sent: dict[str, Wish] = {}
        self.removing: set[str] = set()
        self.foreign: tuple[str, ...] = ()
        self.waits = FetchWaits(self.events, self.pipeline.download.stall)
        self._claim = LandingClaim(self.context.layout, str(root))
        self._device: int | None = None  # of the landing's disk
        self._told_foreign: tuple[str, ...] = ()
        self._busy_at = self._started_at = 0.0
        self._leaving = False

    # At work

    def start_if_needed(self, has_landed: Callable[[], bool]) -> bool:
        """Have a worker; False while it may not be started yet, or one is about to end."""
        self._busy_at = time.monotonic()
        if FETCHER in self.crew:
            return not self._leaving
        if not self.patience.allows(FETCHER):
            return False
        quiet_s = max(self.pipeline.download.stall, LEAST_QUIET_S)
        self._leaving, self._started_at = False, time.monotonic()
        task = self._task(expected=has_landed())
        fetch = Activity("fetch", MODULE, quiet_s, keep_open=True, stacks=True)
        self.crew.start(fetch, FETCHER, task, None)
        return True

    def _task(self, *, expected: bool) -> dict[str, Any]:
        download, quarantine = self.pipeline.download, self.pipeline.quarantine
        source, repo = self.pipeline.dataset.source, self.repo
        third_s = min(60.0, download.stall / 3)
        return {
            "root": str(self.root),
            "dataset": self.pipeline.dataset.name,
            "expected": expected,
            "files_at_once": download.files_at_once,
            "bandwidth": download.bandwidth,
            "min_rate": download.min_rate,
            "window_s": third_s,
            "connect_s": min(20.0, download.stall),
            "read_s": third_s,
            "head_s": min(120.0, download.stall / 2),
            "commit_s": COMMIT_S,
            "commit_bytes": COMMIT_BYTES,
            "backoff": [1.0, 60.0],
            "attempts": download.attempts,
            "floor": self.pipeline.stage.free_floor,
            "keep_files": quarantine.keep_files,
            "keep_bytes": quarantine.keep_bytes,
            "hub": repo and {"repo": repo.repo, "repo_type": repo.repo_type, "endpoint": repo.endpoint},
            "token_file": None if source.token_file is None else str(source.token_file),
            "owner": self.pipeline.owner,
        }

    @property
    def slots(self) -> int:
        """How many more files the worker may be given."""
        return self.pipeline.download.files_at_once * AHEAD - len(self.sent)

    def fetch(self, wanted: Wanted, revision: str, landed: str | None) -> None:
        """Have it fetched, or hashed where it lies: what has another sha256 than `landed` is not kept."""
        self.sent[wanted.path] = Wish(wanted, revision)
        self.transfers.add(wanted.path, wanted.size)
        self.crew[FETCHER].worker.send({"fetch": wanted.remote(self.repo, revision, landed).to_fields()})

    def remove(self, path: str) -> None:
        """Have it unlinked."""
        self.removing.add(path)
        self.crew[FETCHER].worker.send({"remove": path})

    def drop(self, path: str) -> None:
        """Have it forgotten, with what came of it: nobody wants it any more."""
        self.crew[FETCHER].worker.send({"drop": path})

    def restart(self, reason: str) -> None:
        """Have another worker go on; what came is made durable first."""
        if FETCHER in self.crew and not self._leaving:
            self._leaving = True
            self.events.record("fetcher_restarts", reason=reason)
            self.crew[FETCHER].worker.ask_to_stop(_STOP_S)

    def look_after(self) -> None:
        """End a worker that nobody needs, start one anew that grew, or that has a file standing still."""
        if FETCHER not in self.crew or self._leaving:
            return
        now, worker = time.monotonic(), self.crew[FETCHER].worker
        if self.sent or self.removing:
            self._busy_at = now
        elif now - self._busy_at >= IDLE_S:
            self._leaving = True
            worker.close_input()
            return
        # Others may move meanwhile, so that the worker is not silent.
        limit_s = 2 * max(self.pipeline.download.stall, LEAST_QUIET_S)
        if (path := self.transfers.standing(now, limit_s)) is not None:
            self.restart(f"{path}: no byte of it became durable for {limit_s:.0f} s")
        most = MOST_RSS + RSS_A_FILE * max(0, self.pipeline.download.files_at_once - 4)
        if worker.sample.rss_bytes > most and now - self._started_at > LEAST_LIFE_S:
            self.restart(f"it holds {worker.sample.rss_bytes >> 20} MiB")

    def next_due(self, now: float) -> float:
        """When to look whether it stands still: nobody else would wake us up for that."""
        return now + LOOK_EVERY_S if FETCHER in self.crew else math.inf

    # What it says

    def hear(self, message: Mapping[str, Any]) -> None:
        """Keep the figures, and tell what should be told of them."""
        durable, received = self.transfers.durable, self.transfers.received
        self.transfers.hear(message, time.monotonic())
        self._gauges.moved(self.transfers.durable - durable, self.transfers.received - received)
        kind = message["kind"]
        if kind in ("progress", "hashing", "done"):
            self._board.progressed()
        if kind in ("done", "progress", "removed"):
            self.patience.succeeded(FETCHER)
        if kind == "ready":
            self._device = int(message["device"])
            self._found_foreign(tuple(message["foreign"]))
        elif kind == "retry":
            self._gauges.retried(str(message["class"]))
            self._tell_retry(message)
        elif kind in ("anew", "rotten"):
            size = int(message["dropped"] if kind == "anew" else message["bytes"])
            self._gauges.dropped(size)
            why = message.get("reason", "what was kept is not what was written")
            self.events.record("download_anew", level="warning", path=message["path"], bytes=size, reason=why)
        elif kind == "mismatch":
            self._mismatched(message)
        if kind in ("done", "failed", "dropped"):
            self.sent.pop(str(message["path"]), None)
            self.transfers.end(str(message["path"]))
        elif kind in ("removed", "not_removed"):
            self.removing.discard(str(message["path"]))

    def _found_foreign(self, foreign: tuple[str, ...]) -> None:
        self.foreign = foreign
        if foreign and foreign != self._told_foreign:
            self._told_foreign = foreign
            self.events.record(
                "foreign_files", count=len(foreign), first=foreign[0], reason="another client's; left alone"
            )

    def _tell_retry(self, message: Mapping[str, Any]) -> None:
        self.context.log.info(
            "download_retry",
            path=message["path"],
            reason=message["reason"],
            retry_in_s=round(float(message["wait_s"]), 1),
        )

    def _mismatched(self, message: Mapping[str, Any]) -> None:
        self._gauges.mismatched()
        self.events.record(
            "download_mismatch",
            level="warning",
            **{name: message[name] for name in ("path", "expected", "found", "count", "evidence", "landed")},
        )

    def stands(self, given_up: int, paused: Mapping[str, bool]) -> None:
        """Show how it stands."""
        now = time.monotonic()
        self.transfers.note(now)
        self.waits.look(self.transfers, now)
        self._claim.keep(self._device, self.transfers.to_come_bytes())
        self._gauges.stands(self.transfers.rate, given_up, {**paused, "server": bool(self.waits.text)})

    # How it ends

    def close(self) -> None:
        """Nothing more will be fetched."""
        self._claim.end()

    def ended(self, ended: WorkerExit) -> str:
        """Forget what it had in hand: it is asked for anew. Returns why the landing cannot be used, or ""."""
        leaving, self._leaving = self._leaving, False
        self.sent.clear()
        self.removing.clear()
        self.transfers.forget()
        if (leaving and not ended.cause) or ended.kind == "finished":
            return ""
        wait_s = self.patience.failed(FETCHER)
        if ended.code == 69:
            return ended.reason()
        self._gauges.restarted()
        stalled = ended.kind == "timed_out"
        if stalled and ended.stderr_tail:
            self.context.log.write("warning", "fetcher_stacks", "\n".join(ended.stderr_tail), {})
        self.events.record(
            "fetcher_stalled" if stalled else "fetcher_died",
            level="warning",
            reason=ended.reason(),
            said=" | ".join(ended.stderr_tail[-5:])[:1000],
            retry_in_s=round(wait_s, 1),
        )
        return ""
