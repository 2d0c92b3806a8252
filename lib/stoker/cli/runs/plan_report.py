"""The facts of `stoker plan`: the entries, where the run is in them, shard sets, what the plan waits for."""

from __future__ import annotations

import time
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
from stoker.plan import growth
from stoker.plan.consumption import Holdings, read_holdings
from stoker.plan.growth import PlanSource
from stoker.plan.log import DATA_EXHAUSTED, Passed, Segment
from stoker.plan.positions import Accounts, at, books, left_after
from stoker.plan.residency import Floors, ShardSet, due_s, next_use, planned, to_evict, urgency
from stoker.shards.format.pinned import not_yet_pinned
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.run.gates import start_gate
from stoker.supervise.run.plan_settings import gate_wants, growth_policy
from stoker.supervise.run.planner import in_view

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
        "doing": _doing(pipeline, run),
        **_progress(history, mine),
        "waits_for": _waits_for(pipeline, history, pin, sources),
        "timelines": [fork.body() for fork in history.timelines.forks],
        "entries": list(_entries(history, mine.windows_per_s)),
        **_sets(pipeline, pin, sources, holdings),
    }


def _doing(pipeline: Pipeline, run: str) -> str | None:
    """What the supervisor says it does; None while it is not running, or on another run."""
    told = read_status(pipeline.layout)[TRAIN_SUPERVISOR]
    body = told["body"]
    return str(body["doing"]) if told["running"] and body.get("run") == run and "doing" in body else None


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


def _waits_for(
    pipeline: Pipeline, history: History, pin: DatasetPin | None, sources: Mapping[str, Source]
) -> str:
    """What the plan needs before it grows on, decided as the supervisor decides it; "" = nothing."""
    plan, last = history.plan, history.last
    if history.finished or plan.ended:
        return ""
    if pin is None:
        return "the dataset's pin: no file is ready that the tokenizer could be made with"
    if not plan.entries:
        if why := not_yet_pinned(pipeline, pin):
            return f"the start gate: {why}"
        gate = start_gate(in_view(pin, sources), gate_wants(pipeline))
        if gate.state != "open":
            return f"the start gate: {gate.why}"
    to_come = max(0, history.steps - last.step) * history.global_batch
    decision = growth.decide(
        plan,
        [_standing(path, sources.get(path)) for path in pin.listing],
        complete=pin.complete,
        whole=pin.whole,
        consumed=last.windows,
        horizon=plan.windows - left_after(plan, last.position, history.skips) + to_come,
        policy=growth_policy(pipeline),  # by now a file that was ever overtaken has waited long enough
        now=time.monotonic(),
    )
    if decision.entries:
        return "the supervisor: data for the next entry is there, to be proven and appended"
    return "" if decision.why == growth.ENOUGH else decision.why.removeprefix("waiting for ")


def _published(sources: Mapping[str, Source]) -> dict[str, Source]:
    """The source of each published shard set, by its key."""
    return {one.key: one for one in sources.values() if one.state in PUBLISHED and one.key}


def _standing(path: str, source: Source | None) -> PlanSource:
    if source is None:
        return PlanSource.of(path, None, None, None, 0)
    hot, tokens = source.hot or source.state not in PUBLISHED, _tokens(source, "train")
    return PlanSource.of(path, source.state, source.key, source.manifest_sha256, tokens, hot=hot)


def _tokens(source: Source, split: str) -> int:
    return tokens_of(source.books, split)


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
    published = _published(sources)
    token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
    sets = [
        ShardSet(key, set_bytes(one.books, token_bytes), _tokens(one, "train"), one.hot, one.on_warm)
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
