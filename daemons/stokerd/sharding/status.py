"""Status and metrics of the stage-shard loop, both from one reading of the state."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from stoker.config.schema import Filters
from stoker.corpus.quarantine.directory import KINDS
from stoker.corpus.records.index import Sums
from stoker.corpus.records.sources import PUBLISHED, TERMINAL, SourceState
from stoker.corpus.schedule.outcome import Ended, Finished
from stoker.corpus.staging.disk_contents import amount_bytes, measure
from stoker.kit.daemon import DaemonContext
from stoker.kit.metrics import Figure
from stoker.observe.ledger import Disk as DiskSize
from stoker.observe.processes import BUILDER, WORKER, process_figures
from stoker.observe.progress import ProgressTeller, Rate, shard_parts
from stoker.store.layout import STAGE_SHARD
from stokerd.common.observer import Observer
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.activities.moves import MOVES
from stokerd.sharding.activities.quarantine import VERDICTS
from stokerd.sharding.activities.tokenizer import SUBJECT as TOKENIZER
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.state import State

RATE_OVER_S, PACE_OVER_S = 30.0, 60.0
MOST_NAMED = 8  # sets being brought back
REASONS = ("memory", "disk_hot", "disk_warm", "disk_state")

SPLIT = {"split": ("train", "val")}
KIND, VERDICT = {"kind": KINDS}, {"verdict": VERDICTS}
PLACE = {"place": ("hot", "warm", "evicted")}
DISK: Mapping[str, Sequence[str]] = {"disk": ()}  # hot, warm where there is one, state
ACTIVITY = {"activity": tuple(ACTIVITIES)}
ENDS = {**ACTIVITY, "class": get_args(Finished) + get_args(Ended)}
DROPPED: Mapping[str, Sequence[str]] = {"reason": ("null", *Filters.model_fields)}

# Each metric, with its place in the status.
FIGURES = (
    Figure("shard_sources", "Source files by state.", "sources.*", {"state": get_args(SourceState)}),
    Figure("shard_documents", "Documents in proven shard sets.", "documents.*", SPLIT),
    Figure("shard_tokens", "Tokens in proven shard sets.", "tokens.*", SPLIT),
    Figure("shard_dropped_rows", "Rows that filters dropped of proven sets.", "dropped.*", DROPPED),
    Figure("shard_workers", "Workers at work.", "at_work.*", ACTIVITY),
    Figure("shard_workers_rss_bytes", "Resident bytes of all sharding workers.", "workers_rss_bytes"),
    Figure(
        "shard_tokens_per_second", "Tokens committed each second, over half a minute.", "tokens_per_second"
    ),
    Figure(
        "shard_parquet_bytes_per_second",
        "Parquet bytes finished each second.",
        "parquet_bytes_per_second",
    ),
    Figure("shard_parquet_left_bytes", "Bytes of parquet that are not finished.", "bytes_left"),
    Figure("shard_eta_seconds", "Seconds until all sources came to their end.", "eta_s"),
    Figure(
        "shard_last_progress_timestamp_seconds", "Unix time at which sharding last got on.", "progress_at"
    ),
    Figure("shard_dataset_complete", "1 when every listed source came to its end.", "complete"),
    Figure("shard_sets", "Shard sets on hot, copied to warm, and on warm only.", "sets.by_place.*", PLACE),
    Figure("shard_sets_bytes", "Bytes of the shard sets on each disk.", "sets.bytes.*", PLACE),
    Figure("shard_disk_free_bytes", "Bytes free on the disk, as last measured.", "disks.*.free_bytes", DISK),
    Figure("shard_disk_size_bytes", "Bytes of the disk's file system.", "disks.*.total_bytes", DISK),
    Figure(
        "shard_disk_claimed_bytes", "Bytes that all daemons claim of the disk.", "disks.*.claimed_bytes", DISK
    ),
    Figure(
        "shard_disk_free_inodes", "Files that can still be made on the disk.", "disks.*.free_inodes", DISK
    ),
    Figure("shard_disk_inodes", "Files that the disk's file system can hold.", "disks.*.inodes", DISK),
    Figure(
        "shard_disk_device", "Number of the disk's file system; disks may share one.", "disks.*.device", DISK
    ),
    Figure("shard_disk_up", "1 while the disk answers.", "disks.*.up", DISK),
    Figure("shard_syncs_waiting", "Sets without a proven copy on warm.", "sets.waiting_for_sync"),
    Figure("shard_sets_wanted_cold", "Sets that a run waits for and are not on hot.", "sets.wanted_cold"),
    Figure("paused", "1 while the stage-shard loop waits for this.", "is_paused.*", {"reason": REASONS}),
    Figure("staging_paused", "1 while the source folder does not answer.", "is_staging_paused"),
    Figure("workers_stuck", "Killed workers that the kernel does not let go.", "stuck"),
    Figure("worker_rss_bytes", "Bytes of the largest worker of an activity.", "largest.*", ACTIVITY),
    Figure("memory_ladder_step", "Rungs below the top of the memory ladder.", "memory.step"),
    Figure("builders_wanted", "How many builders may be at work.", "parallelism.builders"),
    Figure("copies_wanted", "How many files may be copied to hot at once.", "parallelism.copies"),
    Figure(
        "landing_unneeded_bytes",
        "Bytes of fetched files that nothing needs any more.",
        "landing.unneeded_bytes",
    ),
    Figure("quarantine_files", "Things kept in quarantine.", "quarantine.files.*", KIND),
    Figure("quarantine_bytes", "Bytes kept in quarantine.", "quarantine.bytes.*", KIND),
    Figure("quarantine_looks_total", "Quarantined files seen again.", "quarantine.looks.*", VERDICT),
    Figure("quarantine_dropped_total", "Items deleted from quarantine.", "quarantine.dropped.*", KIND),
    Figure("worker_ends_total", "Ends of workers and of their tasks.", "ends.*.*", ENDS),
    Figure("workers_recycled_total", "Builders ended at a commit point for their size.", "recycled"),
    Figure("shard_moved_bytes_total", "Bytes of sets moved.", "moved_bytes.*", {"move": tuple(MOVES)}),
    Figure("config_warm", "1 where the pipeline has a warm store.", "config.warm"),
    Figure("config_quarantine_bytes", "Bytes that quarantine may keep, as set.", "config.quarantine_bytes"),
    *process_figures(STAGE_SHARD),
)


class Status:
    """Writes the status; keeps the rates of the last half minute and minute."""

    def __init__(self, context: DaemonContext) -> None:
        pipeline = context.pipeline
        places = ("hot", "state") if pipeline.warm is None else ("hot", "warm", "state")
        config = {"warm": pipeline.warm is not None, "quarantine_bytes": pipeline.quarantine.keep_bytes}
        self._config = {"config": config}
        context.metrics.show(FIGURES, {**self._config, "disks": {place: {} for place in places}})
        self._tokens_pace, self._bytes_pace = Rate(RATE_OVER_S), Rate(PACE_OVER_S)
        self._teller = ProgressTeller(context, shard_parts)
        self._observer = Observer(context)
        self._shown_changes = -1

    def show(self, state: State) -> None:
        """Writes the status, which the metrics are read from, and feeds the service manager's watchdog."""
        dataset = state.dataset
        if dataset.sources.changes != self._shown_changes:
            self._shown_changes, state.progress.at = dataset.sources.changes, time.time()
        status = {
            **_records(dataset),
            **self._pace(state),
            "sets": _sets(dataset),
            "disks": _disks(state),
            **_machine(state),
            **_landing(dataset),
            **self._config,
            "quarantine": _quarantine(state),
        }
        status |= self._workers(state, status)
        standing = _standing(state)
        status["trouble"] = state.hot.trouble or standing
        text = _text(status)
        self._teller.tell(status, state.hot.trouble or (f"{text}; {standing}" if standing else text))

    def _workers(self, state: State, status: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the daemon and its workers hold and use, and the largest worker of each kind."""
        builders = dict.fromkeys(state.pool.running(ACTIVITIES["build"].module), BUILDER)
        seen, largest = self._observer.sample(builders, status=status), dict.fromkeys(ACTIVITIES, 0)
        for job in state.pool.jobs:
            rss_bytes = self._observer.totals.rss_bytes.get(job.worker.pid, 0)
            largest[job.kind] = max(largest.get(job.kind, 0), rss_bytes)
        together = sum(seen["processes"][role]["rss_bytes"] for role in (BUILDER, WORKER))
        return {**seen, "workers_rss_bytes": together, "largest": largest}

    def _pace(self, state: State) -> dict[str, Any]:
        """Returns the finished files and bytes of parquet, the totals, the rates, and the remaining time.

        A build in progress counts by its tokens, in proportion to the files built before.
        """
        dataset, now = state.dataset, time.monotonic()
        sources, sums, pin = dataset.sources, dataset.sources.sums, dataset.pinning.pin
        aside = len(sources.formers) + len(sources.imported)
        done, measured = sum(sums.bytes[each] for each in TERMINAL), sums.measured
        builds = dataset.jobs("build")
        for job in builds if measured.tokens else ():
            part = (job.facts.tokens or 0) * measured.parquet_bytes / measured.tokens
            done += min(int(part), sources[job.subject].size)
        whole = sum(sums.bytes.values())
        self._tokens_pace.note(state.progress.built_tokens, now)
        self._bytes_pace.note(done, now)
        left_s = self._bytes_pace.left_s(whole - done)
        return {
            "files_done": sources.count(*TERMINAL) - aside,
            "files_of": max(len(sources), 0 if pin is None else len(pin.listing)) - aside,
            "bytes_done": done,
            "bytes_of": whole,
            "bytes_left": whole - done,
            "parquet_bytes_per_second": round(self._bytes_pace.per_second),
            "tokens_per_second": round(self._tokens_pace.per_second) if builds else 0,
            "eta_s": None if left_s is None or whole == done else round(left_s),
            "progress_at": state.progress.at,
        }


def _records(dataset: DatasetState) -> dict[str, Any]:
    pin, sums = dataset.pinning.pin, dataset.sources.sums
    part = {} if pin is None or not pin.limit else {"files": len(pin.listing), "limit": dict(pin.limit)}
    return {
        "dataset": dataset.name,
        "build_id": None if pin is None else pin.build_id,
        "complete": pin is not None and pin.complete,
        "slice": part or None,
        "sources": dict(sums.states),
        "documents": dict(sums.documents),
        "tokens": dict(sums.tokens),
        "dropped": {reason: sums.dropped[reason] for reason in DROPPED["reason"]},
        "imported": sums.imported,
    }


def _sets(dataset: DatasetState) -> dict[str, Any]:
    sums, wants = dataset.sources.sums, dataset.placement.wants
    amounts = {"hot": sums.hot, "warm": sums.warm, "evicted": sums.evicted}
    by_place = {place: amount.sets for place, amount in amounts.items()}
    token_bytes = dataset.needs.estimate.token_bytes
    return {
        **by_place,
        "by_place": by_place,
        "bytes": {place: amount_bytes(amount, token_bytes) for place, amount in amounts.items()},
        "waiting_for_sync": len(dataset.sources.unsynced) if dataset.warm is not None else 0,
        "wanted_cold": wants.cold,
        "bringing_back": sorted(dataset.doing("hydrate"))[:MOST_NAMED],
    }


def _disks(state: State) -> dict[str, Any]:
    size, disks = None, {disk.place: {"trouble": disk.trouble, "up": disk.is_known} for disk in state.disks}
    with contextlib.suppress(OSError):
        size, _ = measure(state.context.layout.state)
    sizes = {**{disk.place: disk.size for disk in state.disks}, "state": size}
    disks["state"] = {"up": size is not None}
    return {place: {**disks[place], **_size(state, size)} for place, size in sizes.items()}


def _size(state: State, size: DiskSize | None) -> dict[str, Any]:
    if size is None:
        return {}
    inodes = {"inodes": size.inodes, "free_inodes": size.free_inodes} if size.inodes else {}
    of = {"device": size.device, "total_bytes": size.total_bytes, "free_bytes": size.free_bytes, **inodes}
    return {**of, "claimed_bytes": state.space.claimed(size)}


def _machine(state: State) -> dict[str, Any]:
    """Returns the waits, memory, and the present and allowed numbers of workers."""
    reasons, ends, limits = state.pauses.reasons(), state.progress.ends, state.dataset.limits
    working = Counter(state.pool.busy.values())
    training = state.pool[TOKENIZER].facts if TOKENIZER in state.pool else None
    return {
        "waits_for_room": state.space.short.get("hot", ""),
        "moved_bytes": {move: state.progress.moved_bytes[move] for move in MOVES},
        "paused": reasons,
        "is_paused": {reason: reason in reasons for reason in REASONS},
        "is_staging_paused": bool(state.pauses.source_trouble()),
        "memory": state.memory.shown(),
        "workers": {kind: count for kind, count in sorted(working.items()) if kind != "list"},
        "at_work": {kind: working[kind] for kind in ACTIVITIES},
        "tokenizer_percent": getattr(training, "percent", None),
        "stuck": {job.name: job.worker.pid for job in state.pool.jobs if job.abandoned},
        "ends": {kind: dict(counts) for kind, counts in ends.items()},
        "recycled": sum(counts["recycled"] for counts in ends.values()),
        "parallelism": {"builders": limits.builders, "copies": limits.stagers},
    }


def _landing(dataset: DatasetState) -> dict[str, Any]:
    """Returns the files to remove from the landing; empty for a folder source: none of its are removed."""
    if not dataset.is_fetched:
        return {}
    found = ((path, dataset.receipts.get(path)) for path in dataset.demandable)
    here = (path for path, receipt in found if receipt is not None and receipt.usable)
    asked = {"release": len(dataset.demand.unneeded), "fetch": len(dataset.demand.missed)}
    return {"landing": {"unneeded_bytes": sum(dataset.sources[path].size for path in here), "asked": asked}}


def _quarantine(state: State) -> dict[str, Any]:
    kept, progress = [one for one in state.quarantine.kept if one.things], state.progress
    return {
        "files": {kind: sum(one.kind == kind for one in kept) for kind in KINDS},
        "bytes": {kind: sum(one.bytes for one in kept if one.kind == kind) for kind in KINDS},
        "looks": {verdict: progress.looks[verdict] for verdict in VERDICTS},
        "dropped": {kind: progress.dropped[kind] for kind in KINDS},
    }


def _standing(state: State) -> str:
    """Returns in one phrase why some of the work is stopped."""
    pauses = state.pauses
    words = [f"paused ({reason}): {why}" for reason, why in pauses.reasons().items()]
    stuck = (job for job in state.pool.jobs if job.abandoned)
    words += [f"{job.name} hangs in the kernel (pid {job.worker.pid})" for job in stuck]
    warm = "" if state.warm is None else state.warm.trouble
    short = state.space.short
    rest = (pauses.source_trouble(), short.get("hot"), warm, short.get("warm"))
    return "; ".join(words) or next(filter(None, rest), "")


def summary(totals: Sums, left: Collection[str]) -> str:
    """Returns the summary line of --once; `left` names the unfinished work."""
    parts = [_built(totals.states, totals.tokens, totals.imported)]
    parts += [f"{totals.states[each]} {each}" for each in ("duplicate", "quarantined") if totals.states[each]]
    return ", ".join(parts) + ("".join(f"; {each}" for each in left))


def _built(states: Mapping[str, int], tokens: Mapping[str, int], imported: int) -> str:
    built = sum(states[each] for each in PUBLISHED) - imported
    more = f" and {imported} imported" if imported else ""
    return f"{built} files built{more}, {sum(tokens.values()):,} tokens"


def _text(status: Mapping[str, Any]) -> str:
    """Returns the line for `systemctl status` of a healthy daemon."""
    sources, workers, percent = status["sources"], status["workers"], status["tokenizer_percent"]
    quarantined = sources["quarantined"]
    if "tokenizer" in workers and percent == 100:
        return "training the tokenizer: its text is read, the vocabulary is made of it"
    if "tokenizer" in workers:
        return f"training the tokenizer: {percent or 0} % of its text read"
    if status["build_id"] is None and 0 < quarantined == sum(sources.values()):
        return f"every file so far is quarantined ({quarantined}); stoker events says why"
    if status["build_id"] is None:
        return f"waiting for the tokenizer's files: {sources['staged']} staged"
    text = _built(sources, status["tokens"], status["imported"])
    if "build" in workers:
        text += f", {workers['build']} building at {status['tokens_per_second']:,.0f} tokens/s"
    if quarantined:
        text += f", {quarantined} quarantined"
    return text + (", complete" if status["complete"] else "")
