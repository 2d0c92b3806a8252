"""The start of the loop: workers that get ready meanwhile, and sources that begin anew because the
configuration asks for something else by now."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from stoker.corpus.sources import PUBLISHED, TERMINAL, Source, former_name
from stoker.kit.worker import WorkerExit, WorkerNotStarted
from stokerd.crew import Crew
from stokerd.hot_yard import HotYard
from stokerd.pinning import Pinning
from stokerd.shard_tasks import MODULES, PREPARE, ShardTasks
from stokerd.source_book import SourceBook


class Preparation:
    """Has workers ready when the first files are: what each loads takes longer than what the others wait for.

    The sampler comes first, since the first file needs it before it needs a builder; then one builder after
    another. More at once would have the first one wait for the last. Each is tried once: nobody waits for
    them, and what they cannot load is told when a file needs it.
    """

    def __init__(self, crew: Crew, tasks: ShardTasks, pinning: Pinning) -> None:
        self._crew, self._tasks, self._pinning = crew, tasks, pinning
        self._builders = 0  # yet to be loaded

    def begin(self, *, sampler: bool, builders: int) -> None:
        """Start what can load while the disks are looked at; a tokenizer is taken over after that."""
        self._builders = builders
        with suppress(WorkerNotStarted):
            self._crew.warm_up(MODULES["stage"][0])
            if sampler and self._pinning.pin is not None:
                self._load("sample")
            elif sampler:
                self._crew.warm_up(MODULES["sample"][0])

    def go_on(self, allowed: Callable[[], int]) -> None:
        """Have the next builder load the engine, if the tokenizer is known and that many are `allowed`."""
        if not self._builders or self._pinning.tokenizer_file is None:
            return
        module, _ = MODULES["build"]
        at_work = [job.activity for job in self._crew.jobs if job.module == module]
        if PREPARE in at_work:
            return
        if len(at_work) + self._crew.idle(module) >= allowed():
            self._builders = 0  # from now on they come with the work
            return
        self._builders -= 1
        with suppress(WorkerNotStarted):
            self._load("build")

    def ended(self, ended: WorkerExit) -> None:
        """One that did not load: no more of them are tried."""
        if (ended.result or {}).get("status") != "prepared":
            self._builders = 0

    def _load(self, activity: str) -> None:
        module, quiet_s = MODULES[activity]
        tokenizer = self._pinning.tokenizer_file
        assert tokenizer is not None
        subject = f"/{PREPARE}-{activity}"  # no source's path begins with a slash
        task = self._tasks.prepare(tokenizer)
        self._crew.start(PREPARE, subject, module, task, quiet_s=quiet_s, warm=True, another=True)


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
