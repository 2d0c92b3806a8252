"""What the stage-shard loop shows of itself: status and metrics, both from one look at the state."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from stoker.corpus.quarantine.directory import KINDS
from stoker.corpus.records.pin import DatasetPin
from stoker.corpus.records.sources import PUBLISHED, TERMINAL
from stoker.corpus.records.sums import Sums
from stoker.corpus.staging.size_estimate import amount_bytes
from stoker.kit.daemon import DaemonContext
from stoker.kit.process.sampler import sample_process
from stoker.observe.progress import shard_parts
from stoker.observe.rate import Rate
from stokerd.common.progress import ProgressTeller
from stokerd.sharding.activities.tokenizer import SUBJECT as TOKENIZER
from stokerd.sharding.facts import landing
from stokerd.sharding.facts.disks import Disk
from stokerd.sharding.facts.pauses import WRITERS
from stokerd.sharding.metrics import ShardMetrics

if TYPE_CHECKING:
    from stokerd.sharding.state import State

RATE_OVER_S, PACE_OVER_S = 30.0, 60.0
SAMPLE_EVERY_S = 3.0
MOST_NAMED = 8  # of what is being brought back
REASONS = ("memory", "disk_hot", "disk_warm", "disk_state")


class Status:
    """Keeps the rates of the last half minute and minute."""

    def __init__(self, context: DaemonContext) -> None:
        self._context, self._metrics = context, ShardMetrics(context.metrics)
        self._tokens_pace, self._bytes_pace = Rate(RATE_OVER_S), Rate(PACE_OVER_S)
        self._teller = ProgressTeller(context, shard_parts)
        self._shown_changes = -1
        self._dropped: set[str] = set()  # the reasons for which rows were ever dropped
        self._rss_bytes, self._sampled_at = 0, -SAMPLE_EVERY_S

    def show(self, state: State, kinds: Collection[str]) -> None:
        """Set the metrics, write the status, feed the service manager's watchdog."""
        pin, sums, working = state.records.pinning.pin, state.sources.sums, Counter(state.pool.busy.values())
        if state.sources.changes != self._shown_changes:
            self._shown_changes, state.progress.at = state.sources.changes, time.time()
            self._set_sums(sums)
        self._tokens_pace.note(state.progress.built_tokens, time.monotonic())
        rate = self._tokens_pace.per_second if working["build"] else 0.0
        is_complete = pin is not None and pin.complete
        self._set_progress(state, rate, is_complete=is_complete)
        self._metrics.set_all("shard_workers", {kind: working[kind] for kind in kinds})
        status = {
            "dataset": state.records.dataset,
            "build_id": None if pin is None else pin.build_id,
            "complete": is_complete,
            "slice": None
            if pin is None or not pin.limit
            else {"files": len(pin.listing), "limit": dict(pin.limit)},
            "sources": dict(sums.states),
            "documents": dict(sums.documents),
            "tokens": dict(sums.tokens),
            "dropped": dict(sums.dropped),
            "imported": {"sets": sums.imported, "documents_not_known": sums.undocumented},
            "tokenizer_percent": _percent(state),
            "queue": sums.states["staged"] + sums.states["building"],
            "workers": {kind: count for kind, count in sorted(working.items()) if kind != "list"},
            "workers_rss_bytes": self._sample_memory(state),
            "tokens_per_second": round(rate),
            **self._how_far(state, pin),
            **self._disks(state),
            **self._machine(state),
            **self._landing(state),
        }
        trouble, standing = state.hot.trouble, _standing(state)
        status["trouble"] = trouble or standing
        self._teller.tell(status)
        text = _text(sums, working, pin, rate, _percent(state))
        self._context.beat(status, trouble or (f"{text}; {standing}" if standing else text))

    def _set_sums(self, sums: Sums) -> None:
        metrics = self._metrics
        metrics.set_all("shard_sources", sums.states)
        metrics.set_all("shard_documents", sums.documents)
        metrics.set_all("shard_tokens", sums.tokens)
        known = sums.imported - sums.undocumented
        metrics.set_all("shard_imported_sets", {"known": known, "unknown": sums.undocumented})
        self._dropped |= sums.dropped.keys()
        metrics.set_all("shard_dropped_rows", {each: sums.dropped.get(each, 0) for each in self._dropped})

    def _set_progress(self, state: State, rate: float, *, is_complete: bool) -> None:
        metrics, progress = self._metrics, state.progress
        metrics.set("shard_tokens_per_second", rate)
        metrics.set("shard_last_progress_timestamp_seconds", progress.at)
        metrics.set("shard_dataset_complete", is_complete)
        metrics.count("worker_ends_total", progress.ends)
        metrics.count("workers_recycled_total", {(): _recycled(state)})
        metrics.count("shard_moved_bytes_total", progress.moved_bytes)
        metrics.count("quarantine_looks_total", progress.looks)
        metrics.count("quarantine_dropped_total", progress.dropped)
        for kind in KINDS:
            kept = [one for one in state.records.quarantine.kept if one.kind == kind and one.things]
            metrics.set("quarantine_files", len(kept), kind)
            metrics.set("quarantine_bytes", sum(one.bytes for one in kept), kind)

    def _sample_memory(self, state: State) -> int:
        now = time.monotonic()
        if now - self._sampled_at < SAMPLE_EVERY_S:
            return self._rss_bytes
        self._rss_bytes, self._sampled_at = state.pool.rss_bytes(), now
        largest = dict.fromkeys(WRITERS, 0)
        for job in state.pool.jobs:
            largest[job.kind] = max(largest.get(job.kind, 0), sample_process(job.worker.pid).rss_bytes)
        self._metrics.set_all("worker_rss_bytes", largest)
        self._metrics.set("shard_workers_rss_bytes", self._rss_bytes)
        return self._rss_bytes

    def _how_far(self, state: State, pin: DatasetPin | None) -> dict[str, Any]:
        """Files and bytes of parquet that came to their end, of how many, how fast, the time for the rest.

        A build in progress counts by its tokens, as far as files built before tell what to expect.
        """
        sources, sums = state.sources, state.sources.sums
        aside = len(sources.formers) + len(sources.imported)
        done = sum(sums.bytes[each] for each in TERMINAL)
        measured = sums.measured
        for job in state.builds() if measured.tokens else ():
            part = (job.facts.tokens or 0) * measured.parquet_bytes / measured.tokens
            done += min(int(part), sources[job.subject].size)
        whole = sum(sums.bytes.values())
        self._bytes_pace.note(done, time.monotonic())
        rate, left_s = self._bytes_pace.per_second, self._bytes_pace.left_s(whole - done)
        self._metrics.set("shard_parquet_bytes_per_second", rate)
        self._metrics.set("shard_parquet_left_bytes", whole - done)
        return {
            "files_done": sources.count(*TERMINAL) - aside,
            "files_of": max(len(sources), 0 if pin is None else len(pin.listing)) - aside,
            "bytes_done": done,
            "bytes_of": whole,
            "parquet_bytes_per_second": round(rate),
            "eta_s": None if left_s is None or whole == done else round(left_s),
        }

    def _disks(self, state: State) -> dict[str, Any]:
        metrics, sums, wants = self._metrics, state.sources.sums, state.placement.wants
        token_bytes = state.space.estimate.token_bytes
        amounts = {"hot": sums.hot, "warm": sums.warm, "evicted": sums.evicted}
        sets = {place: amount.sets for place, amount in amounts.items()}
        metrics.set_all("shard_sets", sets)
        sizes = {place: amount_bytes(amount, token_bytes) for place, amount in amounts.items()}
        metrics.set_all("shard_sets_bytes", sizes)
        waiting = sums.unsynced if state.warm is not None else 0
        metrics.set("shard_syncs_waiting", waiting)
        metrics.set("shard_sets_wanted_cold", wants.cold)
        return {
            "sets": {
                **sets,
                "waiting_for_sync": waiting,
                "wanted_cold": wants.cold,
                "bringing_back": sorted(state.doing("hydrate"))[:MOST_NAMED],
            },
            "disks": {disk.place: self._disk(state, disk) for disk in state.disks},
            "waits_for_room": state.space.short,
        }

    def _disk(self, state: State, disk: Disk) -> dict[str, Any]:
        self._metrics.set("shard_disk_up", disk.is_known, disk.place)
        if disk.size is None:
            return {"trouble": disk.trouble}
        found = {
            "total_bytes": disk.size.total_bytes,
            "free_bytes": disk.size.free_bytes,
            "claimed_bytes": state.space.claimed(disk.size),
        }
        self._metrics.set("shard_disk_size_bytes", found["total_bytes"], disk.place)
        self._metrics.set("shard_disk_free_bytes", found["free_bytes"], disk.place)
        self._metrics.set("shard_disk_claimed_bytes", found["claimed_bytes"], disk.place)
        return {**found, "trouble": disk.trouble}

    def _machine(self, state: State) -> dict[str, Any]:
        """What waits for what, memory, and how many workers there may be."""
        metrics, memory, stuck = self._metrics, state.pauses.memory, _stuck(state)
        reasons = state.pauses.reasons(state)
        metrics.set_all("paused", {reason: reason in reasons for reason in REASONS})
        metrics.set("staging_paused", bool(state.pauses.source_trouble(state)))
        metrics.set("workers_stuck", len(stuck))
        metrics.set("memory_ladder_step", memory.ladder.step)
        metrics.set("memory_headroom_bytes", memory.facts.headroom_bytes)
        metrics.set("builders_wanted", state.limits.builders)
        metrics.set("copies_wanted", state.limits.stagers)
        return {
            "paused": reasons,
            "memory": memory.shown(),
            "recycled": _recycled(state),
            "stuck": stuck,
            "parallelism": {"builders": state.limits.builders, "copies": state.limits.stagers},
        }

    def _landing(self, state: State) -> dict[str, Any]:
        shown = landing.show(state)
        self._metrics.count("landing_requests_total", state.progress.asked)
        if shown:
            self._metrics.set("landing_unneeded_bytes", shown["landing"]["unneeded_bytes"])
        return shown


def _recycled(state: State) -> int:
    return sum(count for (_, end), count in state.progress.ends.items() if end == "recycled")


def _stuck(state: State) -> dict[str, int]:
    """The workers that the kernel does not let go: pid by what they were doing."""
    return {job.name: job.worker.pid for job in state.pool.jobs if job.abandoned}


def _standing(state: State) -> str:
    """What stops something, though not everything, in one phrase."""
    pauses = state.pauses
    words = [f"paused ({reason}): {why}" for reason, why in pauses.reasons(state).items()]
    words += [f"{name} hangs in the kernel (pid {pid})" for name, pid in _stuck(state).items()]
    warm = "" if state.warm is None else state.warm.trouble
    rest = (pauses.source_trouble(state), state.space.short, warm, state.space.warm_short)
    return "; ".join(words) or next(filter(None, rest), "")


def _percent(state: State) -> int | None:
    """How much of its text the tokenizer's training has read; None while none goes on."""
    if TOKENIZER not in state.pool:
        return None
    percent: int | None = getattr(state.pool[TOKENIZER].facts, "percent", None)
    return percent


def summary(totals: Sums, left: Collection[str]) -> str:
    """One line for the end of --once; `left` says what could not be brought to an end."""
    parts = [_built(totals)]
    parts += [f"{totals.states[each]} {each}" for each in ("duplicate", "quarantined") if totals.states[each]]
    return ", ".join(parts) + ("".join(f"; {each}" for each in left))


def _built(totals: Sums) -> str:
    built = sum(totals.states[each] for each in PUBLISHED) - totals.imported
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
