"""What the stage-shard loop shows of itself: status and metrics, all from the records on disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from stoker.corpus.records.pin import DatasetPin
from stoker.corpus.records.sources import PUBLISHED, TERMINAL
from stoker.corpus.records.sums import Sums
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.observe.rate import Pace
from stoker.observe.shard_progress import progress_line, progress_parts
from stokerd.common.progress import ProgressTeller
from stokerd.sharding.source_store import SourceBook

ACTIVITIES = (
    *("stage", "tokenizer", "build", "prove", "quarantine", "release"),
    *("sync", "evict", "hydrate", "recall", "revalidate", "drop", "import"),
)
RATE_OVER_S, PACE_OVER_S = 30.0, 60.0
SAMPLE_EVERY_S = 3.0


class ShardBoard:
    """Keeps the gauges and the rate of the last half minute."""

    def __init__(self, context: DaemonContext, crew: WorkerPool[Any]) -> None:
        self._context, self._crew = context, crew
        self._built = 0  # tokens that builds of this daemon's made durable
        self._tokens_pace, self._bytes_pace = Pace(RATE_OVER_S), Pace(PACE_OVER_S)
        self._teller = ProgressTeller(context, progress_line, progress_parts)
        self._progress_at = time.time()
        metrics = context.metrics
        self._sources = metrics.gauge("shard_sources", "Source files by state.", ("state",))
        self._documents = metrics.gauge("shard_documents", "Documents in proven shard sets.", ("split",))
        self._tokens = metrics.gauge("shard_tokens", "Tokens in proven shard sets.", ("split",))
        self._imported = metrics.gauge(
            "shard_imported_sets", "Imported shard sets, whose rows are not known.", ("documents",)
        )
        self._dropped = metrics.gauge(
            "shard_dropped_rows", "Rows that filters dropped of what is in proven shard sets.", ("reason",)
        )
        self._workers = metrics.gauge("shard_workers", "Workers at work.", ("activity",))
        self._rss = metrics.gauge("shard_workers_rss_bytes", "Resident memory of all workers together.")
        self._rss_bytes, self._sampled_at = 0, -SAMPLE_EVERY_S
        self._rate = metrics.gauge("shard_tokens_per_second", "Tokens committed, over the last half minute.")
        self._bytes_rate = metrics.gauge(
            "shard_parquet_bytes_per_second", "Parquet brought to its end, over the last minute."
        )
        self._bytes_left = metrics.gauge("shard_parquet_left_bytes", "Parquet that waits for its end.")
        self._progress = metrics.gauge(
            "shard_last_progress_timestamp_seconds",
            "When a build last committed or a source last changed state.",
        )
        self._complete = metrics.gauge(
            "shard_dataset_complete", "1 when every listed source came to its end."
        )
        self._told = -1  # the changes to the records that the gauges know of
        self._reasons: set[str] = set()  # for which rows were ever dropped
        self._set_totals(Sums())

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """What a worker said: a build where it begins, and like the tokenizer's training how far it got."""
        if message["kind"] == "commit":
            self._committed(job, int(message["tokens"]))
        elif job.kind == "tokenizer" and message["kind"] == "progress":
            job.facts["percent"] = message["percent"]
        elif message.get("phase") == "open":
            job.facts["resumed"] = bool(message.get("row_group") or message.get("row"))

    def _committed(self, job: Job[Any], tokens: int) -> None:
        """A build made its first `tokens` tokens durable."""
        before = job.facts.get("tokens")
        job.facts["tokens"] = tokens
        if before is not None or not job.facts.get("resumed"):  # else it also counts what was there
            self._built += max(0, tokens - (before or 0))
        self._progress_at = time.time()

    def show(
        self,
        book: SourceBook,
        pin: DatasetPin | None,
        trouble: str,
        standing: str,
        disks: Mapping[str, Any],
    ) -> None:
        """Set the gauges, write the status snapshot, feed the service manager's watchdog.

        `trouble` stops everything, `standing` something; `disks` goes into the snapshot as it is.
        """
        totals = book.sources.sums
        if book.changes != self._told:
            self._told, self._progress_at = book.changes, time.time()
            self._set_totals(totals)
        working = Counter(self._crew.busy.values())
        for activity in ACTIVITIES:
            self._workers.labels(activity).set(working[activity])
        self._sample_memory()
        self._tokens_pace.note(self._built, time.monotonic())
        rate = self._tokens_pace.per_second if working["build"] else 0.0
        self._rate.set(rate)
        self._progress.set(self._progress_at)
        self._complete.set(1 if pin is not None and pin.complete else 0)
        status = {
            "dataset": self._context.pipeline.dataset.name,
            "build_id": None if pin is None else pin.build_id,
            "complete": pin is not None and pin.complete,
            "slice": None if pin is None or not pin.limit else _slice(pin),
            "sources": dict(totals.states),
            "documents": dict(totals.documents),
            "tokens": dict(totals.tokens),
            "dropped": dict(totals.dropped),
            "imported": {"sets": totals.imported, "documents_not_known": totals.undocumented},
            "tokenizer_percent": self._tokenizer_percent,
            "queue": totals.states["staged"] + totals.states["building"],
            "workers": dict(
                sorted((activity, count) for activity, count in working.items() if activity != "list")
            ),
            "workers_rss_bytes": self._rss_bytes,
            "tokens_per_second": round(rate),
            **self._how_far(book, pin),
            "trouble": trouble or standing,
            **disks,
        }
        self._teller.tell(status)
        text = _text(totals, working, pin, rate, self._tokenizer_percent)
        self._context.beat(status, trouble or (f"{text}; {standing}" if standing else text))

    @property
    def _tokenizer_percent(self) -> int | None:
        """How much of its text the tokenizer's training has read; None while none goes on."""
        return next((job.facts.get("percent") for job in self._crew.jobs if job.kind == "tokenizer"), None)

    def _set_totals(self, totals: Sums) -> None:
        for state, count in totals.states.items():
            self._sources.labels(state).set(count)
        for split in ("train", "val"):
            self._documents.labels(split).set(totals.documents[split])
            self._tokens.labels(split).set(totals.tokens[split])
        self._imported.labels("known").set(totals.imported - totals.undocumented)
        self._imported.labels("unknown").set(totals.undocumented)
        self._reasons |= totals.dropped.keys()
        for reason in self._reasons:
            self._dropped.labels(reason).set(totals.dropped.get(reason, 0))

    def _sample_memory(self) -> None:
        if time.monotonic() - self._sampled_at >= SAMPLE_EVERY_S:
            self._rss_bytes, self._sampled_at = self._crew.rss_bytes(), time.monotonic()
            self._rss.set(self._rss_bytes)

    def _how_far(self, book: SourceBook, pin: DatasetPin | None) -> dict[str, Any]:
        """Files and bytes of parquet that came to their end, of how many, how fast, the time for the rest.

        A build in progress counts by its tokens, as far as files built before tell what to expect.
        """
        sources, sums = book.sources, book.sources.sums
        aside = len(sources.formers) + len(sources.imported)
        done = sum(sums.bytes[state] for state in TERMINAL)
        measured = sums.measured
        for job in self._crew.jobs if measured.tokens else ():
            if job.kind == "build" and job.subject in sources:
                size = sources[job.subject].size
                part = job.facts.get("tokens", 0) * measured.parquet_bytes / measured.tokens
                done += min(int(part), size)
        whole = sum(sums.bytes.values())
        self._bytes_pace.note(done, time.monotonic())
        rate, left_s = self._bytes_pace.per_second, self._bytes_pace.left_s(whole - done)
        self._bytes_rate.set(rate)
        self._bytes_left.set(whole - done)
        return {
            "files_done": sources.count(*TERMINAL) - aside,
            "files_of": max(len(sources), 0 if pin is None else len(pin.listing)) - aside,
            "bytes_done": done,
            "bytes_of": whole,
            "parquet_bytes_per_second": round(rate),
            "eta_s": None if left_s is None or whole == done else round(left_s),
        }


def _slice(pin: DatasetPin) -> dict[str, Any]:
    return {"files": len(pin.listing), "limit": dict(pin.limit)}


def summary(totals: Sums, left: Collection[str]) -> str:
    """One line for the end of a drain; `left` says what could not be brought to an end."""
    parts = [_built(totals)]
    parts += [
        f"{totals.states[state]} {state}" for state in ("duplicate", "quarantined") if totals.states[state]
    ]
    return ", ".join(parts) + ("".join(f"; {each}" for each in left))


def _built(totals: Sums) -> str:
    built = sum(totals.states[state] for state in PUBLISHED) - totals.imported
    more = f" and {totals.imported} imported" if totals.imported else ""
    return f"{built} files built{more}, {totals.tokens['train'] + totals.tokens['val']:,} tokens"


def _text(
    totals: Sums, working: Counter[str], pin: DatasetPin | None, rate: float, percent: int | None
) -> str:
    if working["tokenizer"] and percent == 100:
        return "training the tokenizer: its text is read, the vocabulary is made of it"
    if working["tokenizer"]:
        return f"training the tokenizer: {percent or 0} % of its text read"
    if pin is None and 0 < totals.states["quarantined"] == sum(totals.states.values()):
        return f"every file so far is quarantined ({totals.states['quarantined']}); stoker events says why"
    if pin is None:
        return f"waiting for the tokenizer's files: {totals.states['staged']} staged"
    text = _built(totals)
    if working["build"]:
        text += f", {working['build']} building at {rate:,.0f} tokens/s"
    if totals.states["quarantined"]:
        text += f", {totals.states['quarantined']} quarantined"
    return text + (", complete" if pin.complete else "")
