"""Applies the effects: to the state on disk, then to the state in memory, and to the workers."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from stoker.corpus.quarantine.directory import QuarantineEntry, mark, open_folder
from stoker.corpus.records.dataset import write_pin
from stoker.corpus.records.receipts import write_demand
from stoker.corpus.records.sources import write_source
from stoker.kit.daemon import DaemonContext
from stoker.kit.events import Alerts
from stoker.store.files import remove_durably, remove_tree, unlink_durably
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.store.record import utc_now
from stoker.store.requests import file_request, finish_request
from stokerd.sharding import effects
from stokerd.sharding.effects import Change, Effect, Write
from stokerd.sharding.state import State


class Effects:
    """Applies effects in order: a record is durable before its event, and before the loop uses it."""

    def __init__(self, context: DaemonContext, state: State) -> None:
        self.layout, self.events, self.state = context.layout, context.events, state
        self.alerts = Alerts(context.events)

    def apply(self, requested: Iterable[Effect]) -> None:
        """Applies these in order; each is applied before the handler computes the next.

        When an effect fails the handler is closed at once: it may hold a lock during a long disk wait.
        """
        try:
            for effect in requested:
                if isinstance(effect, Change):
                    self._change(effect)
                else:
                    self._act(effect)
        finally:
            if isinstance(requested, Generator):
                requested.close()

    def _change(self, effect: Change) -> None:
        layout, datasets = self.layout, self.state.datasets
        match effect:
            case Write(source):
                write_source(layout, source)
                datasets[source.dataset].put(source)
            case effects.Forget(source):
                unlink_durably(layout.source(source.dataset, source.path))
                datasets[source.dataset].drop(source.path)
            case effects.StartOver(source, reason, level, size, sha256):
                size = source.size if size is None else size
                renewed = source.renewed(size=size, sha256=sha256 or source.sha256, reason=reason)
                self._change(Write(renewed))
                about = {"path": source.path, "was": source.state, "reason": reason}
                self.events.record("source_renewed", level=level, **about)
            case effects.WritePin(pin):
                write_pin(layout, pin)
                datasets[pin.dataset].pinning.pin = pin
            case effects.SetDemand(dataset, demand):
                write_demand(layout, dataset, demand)
                datasets[dataset].demand = demand
            case _:
                self._change_finding(effect)
                self.state.quarantine.read_soon()

    def _change_finding(self, effect: Change) -> None:
        quarantine = self.layout.quarantine
        match effect:
            case effects.OpenFinding(name, reason):
                folder = open_folder(quarantine, "parquet", name, reason)
                about = {key: value for key, value in reason.items() if key != "sha256"}
                self.events.record("source_quarantined", folder=str(folder), **about)
            case effects.MarkFinding(name, changes):
                mark(quarantine / name, **changes)
            case effects.DropFinding(kept, why, reason_too):
                self._drop(kept, why, reason_too=reason_too)

    def _drop(self, kept: QuarantineEntry, why: str, *, reason_too: bool) -> None:
        folder = self.layout.quarantine / kept.name
        size = int((kept.dropping or {}).get("bytes", kept.bytes))
        about = {"kind": kept.kind, "path": kept.path, "folder": kept.name}
        self.events.record("quarantine_dropped", **about, bytes=size, why=why)
        self.state.progress.dropped[kept.kind] += 1
        if reason_too:
            remove_tree(folder)
            return
        for thing in kept.things:
            remove_durably(folder / thing)
        mark(folder, dropping=None, dropped={"time": utc_now(), "why": why, "bytes": size})

    def _act(self, effect: Effect) -> None:
        layout, state = self.layout, self.state
        match effect:
            case effects.Event(word, fields):
                self.events.record(word, **fields)
            case effects.Alert(word, about, fields):
                self.alerts.raise_(word, about, **fields)
            case effects.AlertOver(word, about, tell, fields):
                self.alerts.clear(word, about, tell=tell, **fields)
            case effects.Begin(dataset, activity, subject, task, work):
                work.dataset, work.memory = dataset, state.memory.look_now()
                state.pool.start(activity, subject, task, work)
            case effects.Send(subject, message):
                if subject in state.pool:  # the worker may have ended right after its question
                    state.pool[subject].worker.send(message)
            case effects.Dispute(path, sha256):
                file_request(layout, DOWNLOAD_WATCHDOG, "dispute", {"path": path, "sha256": sha256})
            case effects.Answer(request, outcome):
                finish_request(layout, STAGE_SHARD, request, outcome)
                state.inbox.answered(request)
