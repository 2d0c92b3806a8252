"""Answers SIGHUP: a worker with the code and the file of now says whether a daemon may begin again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.kit.handover import VERSION, interpreter
from stoker.kit.workers.parent import Bounds, Worker, WorkerExit
from stoker.store.errors import Transient

SILENT_S = 60.0  # longer than a loaded machine takes to import a daemon


class Reload:
    """The check that a SIGHUP asks for, by the worker `module`: `look` in each cycle.

    `work` returns what the daemon would hand over now; the worker checks that its code can read it.
    """

    def __init__(
        self, context: DaemonContext, module: str, work: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        self._context, self._module, self._work = context, module, work
        self._worker: Worker | None = None
        self._passed: Mapping[str, Any] | None = None

    @property
    def pids(self) -> set[int]:
        """The worker's process id, while it runs."""
        return {self._worker.pid} if self._worker is not None else set()

    def check(self) -> Mapping[str, Any] | None:
        """Begins a check where one is asked for; once it is passed, returns what the event tells of it."""
        context = self._context
        if self._worker is not None and (end := self._worker.hear()[1]) is not None:
            context.waiter.remove_fd(self._worker.fileno())
            self._worker = None
            if not context.is_reload_asked:  # else the file has changed since it was read
                self._judge(end)
        if context.is_reload_asked and self._worker is None:
            context.is_reload_asked, self._passed = False, None
            self._begin()
        return self._passed

    def refuse(self, reason: str) -> None:
        """Records that the daemon goes on as it is."""
        self._passed = None
        self._context.events.record("reload_refused", reason=reason)
        self._context.notifier.ready()

    def _begin(self) -> None:
        context = self._context
        context.notifier.reloading()
        task = {
            "daemon": context.name,
            "file": str(context.pipeline.file),
            "config": context.pipeline.model_dump(mode="json"),
            "work": self._work(),
        }
        bounds = Bounds(SILENT_S)
        try:
            self._worker = Worker(self._module, task, name="the check", bounds=bounds, python=interpreter())
        except Transient as problem:
            self.refuse(str(problem))
        else:
            context.waiter.add_fd(self._worker.fileno(), "reload")

    def _judge(self, end: WorkerExit) -> None:
        found = end.result
        if found is None:
            said = "" if end.error else ": " + "".join(end.stderr_tail[-1:]).strip()
            self.refuse(f"{end.reason()}{said}")
        elif found["handover"] != VERSION:
            self.refuse(
                f"version {found['version']} cannot take over from this one; restart the daemon instead"
            )
        else:
            self._passed = {"changed": found["changed"]}
