"""The facts of `stoker plan`: the entries, where the run is in them, shard sets, what the plan waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.cli.runs.step_history import History
from stoker.cli.which_run import read_identity, run_names
from stoker.config.schema import Pipeline
from stoker.corpus.records.books import tokens_of
from stoker.corpus.records.pin import DatasetPin, read_pin
from stoker.corpus.records.sources import PUBLISHED, Source, read_sources
from stoker.corpus.staging.size_estimate import set_bytes
from stoker.observe.status import read_status
from stoker.plan.consumption import Holdings, read_holdings
from stoker.plan.log import DATA_EXHAUSTED, Passed, Segment
from stoker.plan.positions import Accounts, at, books
from stoker.plan.residency import Floors, ShardSet, due_s, next_use, planned, to_evict, urgency
from stoker.store.layout import TRAIN_SUPERVISOR

ACCOUNTED = ("applied", "skipped", "remainder", "ahead")
WITHOUT_WARM = "without a warm store nothing leaves hot"


def look(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """Everything, as it stands now; reads the state directory alone. Raises DataError for a damaged plan."""
    sources = read_sources(pipeline.layout, pipeline.dataset.name)
    pin = read_pin(pipeline.layout, pipeline.dataset.name)
    run_id = read_identity(pipeline.layout, run).run_id if run in run_names(pipeline.layout) else None
    history = History(pipeline, run, run_id=run_id)
    holdings = read_holdings(pipeline.layout)
    mine = next((one for one in holdings if one.run == run), Holdings(run, history.plan))
    return {
        "v": 1,
        "pipeline": pipeline.name,
        "run": run,
        "begun": bool(history.plan.entries),
        "finished": history.finished,
        **_supervisor(pipeline, run),
        **_progress(history, mine),
        "timelines": [fork.body() for fork in history.timelines.forks],
        "entries": list(_entries(history, mine.windows_per_s)),
        **_sets(pipeline, pin, sources, holdings),
    }


def _supervisor(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """What the supervisor says of the run; nothing while it is not running, or is on another run."""
    told = read_status(pipeline.layout)[TRAIN_SUPERVISOR]
    body = told["body"] if told["running"] and told["body"].get("run") == run else {}
    return {"doing": body.get("doing"), "waits_for": body.get("waiting_for") or body.get("plan_waits_for")}


def _progress(history: History, mine: Holdings) -> dict[str, Any]:
    """Where the run is, what it has used of the plan and what is left."""
    plan, last = history.plan, history.last
    account = books(plan, last.position, history.skips, exhausted=history.finished == DATA_EXHAUSTED)
    tokens = Accounts(plan, history.skips).tokens(at(plan, plan.windows)) if plan.entries else 0
    here = (entry.epoch for entry in plan.entries[last.position.entry :] if isinstance(entry, Segment))
    return {
        "step": last.step,
        "steps": history.steps,
        "sealed_step": history.sealed,
        "timeline": history.timeline,
        "position": last.position.as_list(),
        "epoch": next(here, 0),
        "windows": {"planned": account.windows, **{name: getattr(account, name) for name in ACCOUNTED}},
        "tokens": {"applied": account.tokens, "ahead": tokens - account.tokens, "tail": account.tail_tokens},
        "ended": plan.ended,
        "windows_per_s": mine.windows_per_s,
        "lasts_s": due_s(plan, last.position, len(plan.entries), mine.windows_per_s, history.skips),
        "low_water": mine.low_water.as_list(),
    }


def _entries(history: History, windows_per_s: float | None) -> Iterator[dict[str, Any]]:
    """Each entry, how much of it is read, and in how many seconds its first window is due."""
    plan, last = history.plan, history.last
    for entry in plan.entries:
        if isinstance(entry, Segment):
            read = min(max(0, last.windows - plan.starts[entry.n]), entry.windows)
            due = due_s(plan, last.position, entry.n, windows_per_s, history.skips)
            names = ("n", "epoch", "seq_len", "windows", "tail_tokens")
            yield {
                **{name: getattr(entry, name) for name in names},
                "sets": [key for key, _ in entry.sets],
                "read": read,
                "tokens": entry.windows * entry.seq_len,
                "state": "read" if read == entry.windows else "reading" if read else "ahead",
                "due_s": None if read else due,
            }
        elif isinstance(entry, Passed):
            yield {"n": entry.n, "passed": [entry.path, entry.reason]}
        else:
            yield {"n": entry.n, "end": entry.reason}


def _sets(
    pipeline: Pipeline, pin: DatasetPin | None, sources: Mapping[str, Source], holdings: list[Holdings]
) -> dict[str, Any]:
    """Every published shard set: where it lies, who holds it there, and whether it may leave now."""
    published = {one.key: one for one in sources.values() if one.state in PUBLISHED and one.key}
    token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
    sets = [
        ShardSet(key, set_bytes(one.books, token_bytes), tokens_of(one.books, "train"), one.hot, one.on_warm)
        for key, one in published.items()
    ]
    listed = [sources[path].key for path in (pin.listing if pin else ()) if path in sources]
    leave: list[str] = []
    why = WITHOUT_WARM
    if pipeline.warm is not None:
        leave, why = to_evict(
            sets,
            holdings,
            next_use(holdings, [key for key in listed if key]),
            free_bytes=0,
            wanted_free_bytes=1 << 62,
            floors=Floors(pipeline.evict.keep_hot_sets, pipeline.evict.min_active_tokens),
        )
        why = why.partition("; ")[2]
    kept, wants = planned(holdings), urgency(holdings)
    return {
        "sets": [
            {
                "set": one.key,
                "source": published[one.key].path,
                "bytes": one.bytes,
                "place": "hot" if one.hot else "warm" if published[one.key].evicted else "leaving",
                "on_warm": one.warm,
                "planned": one.key in kept,
                "wanted": wants.index(one.key) + 1 if one.key in wants else None,
                "evictable": one.key in leave,
            }
            for one in sets
        ],
        "why_they_stay": why,
    }
