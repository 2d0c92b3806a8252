"""The start of the loop: workers that get ready meanwhile, and sources that begin anew because the
configuration asks for something else by now."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stoker.corpus.sources import PUBLISHED, TERMINAL, Source, former_name
from stoker.kit.fork_server import FORK_SERVER, ForkServer
from stoker.kit.worker import WorkerExit, WorkerNotStarted
from stokerd.crew import Crew, Job
from stokerd.hot_yard import HotYard
from stokerd.loads import LOAD_S
from stokerd.pinning import Pinning
from stokerd.shard_tasks import FORKED, MODULES, PREPARE, ShardTasks
from stokerd.source_book import SourceBook

_SERVER = f"/{PREPARE}"  # no source's path begins with a slash
_TRIES, _RETRY_S = 3, 60.0
_PASSING = (74, 75)  # exit codes that say: another time


class Preparation:
    """Has workers ready when the first files are: what each loads takes longer than what the others wait for.

    A fork server loads it once for all of them: their modules, then the engine while the first file is
    staged. Then a sampler compares the engines on odd texts. The server ends when nothing was staged or
    begun for a while, and begins anew with the next file; without it each worker loads for itself.
    """

    def __init__(self, crew: Crew, tasks: ShardTasks, pinning: Pinning, *, sampler: bool) -> None:
        self._crew, self._tasks, self._pinning = crew, tasks, pinning
        self._sampler = sampler
        self._engine_loaded = self._sampler_loaded = False
        self._tries, self._not_before = _TRIES, 0.0
        self._wanted = False  # there are files, or were
        crew.forked = FORKED

    def adopt(self, server: ForkServer | None) -> None:
        """Take over a server that was started before the configuration was read, if it is this crew's."""
        if server is None:
            return
        if server.crew != self._crew.name:
            server.stop(0.0)
            return
        self._crew.adopt(PREPARE, _SERVER, FORK_SERVER, server)

    def begin(self) -> None:
        """Have the fork server load: there are files. Nothing need be known of hot and the tokenizer yet."""
        self._wanted = True
        if _SERVER in self._crew or self._crew.idle(FORK_SERVER):
            return
        self._engine_loaded = self._sampler_loaded = False
        self._load(_SERVER, FORK_SERVER, self._tasks.preload(None), LOAD_S)

    def go_on(self) -> None:
        """Have loaded what can be by now."""
        if self._tries <= 0 or _SERVER in self._crew:
            return
        staging = any(job.activity == "stage" and not job.abandoned for job in self._crew.jobs)
        if not self._crew.idle(FORK_SERVER):
            if staging and time.monotonic() >= self._not_before:
                self.begin()
            return
        if staging:  # what is built of it comes soon
            self._crew.keep(FORK_SERVER)
        self._wanted |= staging
        tokenizer = self._pinning.tokenizer_file
        if tokenizer is None or not self._wanted:
            return
        if self._engine_is_next():
            self._engine_loaded = True
            with suppress(WorkerNotStarted):  # the first file is staged meanwhile
                self._crew.warm_up(MODULES["stage"][0])
            self._load(_SERVER, FORK_SERVER, self._tasks.preload(tokenizer), LOAD_S)
        elif self._sampler and not self._sampler_loaded:
            self._sampler_loaded = True
            module, quiet_s = MODULES["sample"]
            if not any(job.module == module for job in self._crew.jobs):
                self._load(f"/{PREPARE}-sampler", module, self._tasks.prepare(tokenizer), quiet_s)

    def _engine_is_next(self) -> bool:
        ready = self._wanted and self._tries > 0 and self._crew.idle(FORK_SERVER) > 0
        return ready and not self._engine_loaded and self._pinning.tokenizer_file is not None

    def _load(self, subject: str, module: str, task: Mapping[str, Any], quiet_s: float) -> None:
        with suppress(WorkerNotStarted):
            self._crew.start(PREPARE, subject, module, task, quiet_s=quiet_s, warm=True)

    def ended(self, job: Job, ended: WorkerExit) -> None:
        """Go on; a fork server that was killed or found its disk away is tried again, a few times."""
        if job.subject != _SERVER:
            return
        if ended.result is None:
            passing = ended.kind in ("killed", "timed_out") or ended.code in _PASSING
            self._tries -= 1 if passing else _TRIES
            self._not_before = time.monotonic() + _RETRY_S
            if self._tries <= 0:
                message = "each worker loads for itself, a second longer; a restart tries again"
                self._crew.tell(
                    "fork_server_given_up", level="warning", reason=ended.reason(), message=message
                )
        elif self._engine_loaded:
            self._tries = _TRIES
        self.go_on()

    @property
    def loading(self) -> frozenset[str]:
        """The modules of workers that are loading now."""
        jobs = (job for job in self._crew.jobs if job.activity == PREPARE)
        return frozenset(job.module for job in jobs if not job.abandoned)

    def makes_wait(self, activity: str) -> bool:
        """Whether a worker for it is sooner ready than one that would load for itself."""
        module, _ = MODULES[activity]
        if module not in FORKED or self._crew.idle(module):
            return False
        soon = not self.loading.isdisjoint((module, FORK_SERVER))
        return soon or (activity != "stage" and self._engine_is_next())


def begin_new_version(book: SourceBook, pinning: Pinning, yard: HotYard) -> None:
    """Start every source anew when dataset.version was raised: the sets there are are another build's."""
    if pinning.earlier is None or pinning.pin is not None:
        return
    for source in list(book.sources.values()):
        if source.former is not None:  # of a content that no file has: nothing can be built of it
            book.forget(source)
        elif source.never_came:
            continue  # it begins anew when its file comes
        elif source.state in TERMINAL or source.state == "building":
            yard.discard_build(source)
            book.renew(replace(source, formers=()), "new dataset version")


def restore_formers(book: SourceBook) -> None:
    """Bring the records of what files held before in line with those of the files.

    A change cut off between the two records is as if it had not begun; a record that was lost is made anew,
    and its shard set is found by its key.
    """
    sources = book.sources
    for former in [sources[path] for path in sources.formers]:
        origin = sources.get(str(former.former))
        both = origin is not None and {origin.state, former.state} <= PUBLISHED
        if both and origin is not None and origin.sha256 == former.sha256:
            plain = Source(former.dataset, former.path, former.size, former.sha256, former=former.former)
            book.write(replace(plain, state="duplicate", reason=f"same content as {origin.path}"))
    for source in [one for one in sources.values() if one.formers]:
        for sha256, size in source.formers:
            if not sources.with_content(sha256):
                lost = Source(source.dataset, source.path, size, sha256)
                book.write(replace(lost, path=former_name(sources, lost), former=source.path))


def acquit_for_other_columns(book: SourceBook, columns_read: Collection[str]) -> None:
    """Start sources anew that were quarantined for a column which the configuration no longer reads."""
    for source in list(book.sources.values()):
        blamed = source.column if source.state == "quarantined" else None
        if blamed is not None and blamed not in columns_read:
            book.renew(source, f"it was quarantined for column {blamed!r}, which is not read now")
