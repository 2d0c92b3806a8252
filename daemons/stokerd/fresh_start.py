"""The start of the loop: workers that get ready meanwhile, and sources that begin anew because the
configuration asks for something else by now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.corpus.sources import PUBLISHED, TERMINAL, Source, former_name
from stoker.kit.fork_server import FORK_SERVER
from stoker.kit.worker import WorkerExit, WorkerNotStarted
from stokerd.crew import Crew, Job
from stokerd.hot_yard import HotYard
from stokerd.pinning import Pinning
from stokerd.shard_tasks import FORKED, MODULES, PREPARE, ShardTasks
from stokerd.source_book import SourceBook

_SERVER = f"/{PREPARE}"  # no source's path begins with a slash
_LOAD_S = 60.0  # the longest that loading may take
_KILLS = 3  # of fork servers that are still loading, and then no other is tried


class Preparation:
    """Has workers ready when the first files are: what each loads takes longer than what the others wait for.

    A fork server loads it once for all of them: their modules, then the engine while files are staged; and a
    sampler compares the engines on odd texts meanwhile. Where that fails, and when it was idle for long, each
    worker loads for itself; a file that comes then has it begin anew.
    """

    def __init__(self, crew: Crew, tasks: ShardTasks, pinning: Pinning, *, sampler: bool) -> None:
        self._crew, self._tasks, self._pinning = crew, tasks, pinning
        self._sampler = sampler
        self._engine_loaded = self._sampler_loaded = False
        self._tries = _KILLS
        crew.forked = FORKED

    def begin(self) -> None:
        """Start the fork server, while nothing is known of files and tokenizer yet."""
        self._engine_loaded = self._sampler_loaded = False
        self._start(_SERVER, FORK_SERVER, self._tasks.preload(None))

    def go_on(self) -> None:
        """Have loaded what can be by now."""
        if self._tries <= 0 or _SERVER in self._crew:
            return
        if not self._crew.idle(FORK_SERVER):
            if any(job.activity == "stage" for job in self._crew.jobs):
                self.begin()
            return
        tokenizer = self._pinning.tokenizer_file
        if tokenizer is not None and not self._engine_loaded:
            self._engine_loaded = True
            with suppress(WorkerNotStarted):  # the first file is staged meanwhile
                self._crew.warm_up(MODULES["stage"][0])
            self._start(_SERVER, FORK_SERVER, self._tasks.preload(tokenizer))
        elif tokenizer is not None and self._sampler:
            self._load_sampler(tokenizer)

    def _load_sampler(self, tokenizer: Path) -> None:
        module, _ = MODULES["sample"]
        if self._sampler_loaded or any(job.module == module for job in self._crew.jobs):
            return
        self._sampler_loaded = True
        self._start(f"/{PREPARE}-sampler", module, self._tasks.prepare(tokenizer))

    def _start(self, subject: str, module: str, task: Mapping[str, Any]) -> None:
        with suppress(WorkerNotStarted):
            self._crew.start(PREPARE, subject, module, task, quiet_s=_LOAD_S, warm=True)

    def ended(self, job: Job, ended: WorkerExit) -> None:
        """A fork server that could not load is not tried again; one that was killed is, a few times."""
        if job.subject == _SERVER and ended.result is None:
            self._tries -= 1 if ended.kind == "killed" else _KILLS

    @property
    def loading(self) -> frozenset[str]:
        """The modules of workers that are loading now."""
        jobs = (job for job in self._crew.jobs if job.activity == PREPARE)
        return frozenset(job.module for job in jobs if not job.abandoned)

    def makes_wait(self, activity: str) -> bool:
        """Whether a worker for it is sooner ready than one that would load for itself."""
        module, _ = MODULES[activity]
        soon = module in FORKED and not self.loading.isdisjoint((module, FORK_SERVER))
        return soon and not self._crew.idle(module)


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
