"""Builds shard sets, a task a line of its input: `python -m stoker.shards.build.build_worker`.

Messages: `phase` (check_engine, open, encode, commit, seal_hash, seal_manifest, seal_sums, publish), `commit`
with how far the durable part reaches, `engine` where the fast engine was given up for the reference, and
`room` with the bytes written and needed where the set outgrows its task's `room`: it waits for the line
{"room": bytes}. Result: `status` published or existed with the books, else bad, changed or target_invalid
with the reason; or outgrown, the partial set removed, where that line gave too little; or recycled with the
memory held: a fresh process has to go on from the last commit. A disk that cannot be read or written now is
an error, exit code 74.
"""

from __future__ import annotations

from stoker.shards.format.thread_limits import one_thread

# isort: split
import fcntl
import gc
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.corpus.staging.disk_contents import insist_on
from stoker.corpus.staging.finding import BadParquet
from stoker.kit.workers.child import run_worker
from stoker.shards.build.builder import Build, BuildTask, Dialogue, EncodeThread, NoRoom, Reporter
from stoker.shards.build.engine_check import Engines
from stoker.shards.build.memory_use import give_back, resident_bytes
from stoker.shards.build.publish import (
    Published,
    examine_target,
    publish,
    seal,
    sealed_before,
    still_staged,
    still_staged_behind,
)
from stoker.shards.build.readback import Trail
from stoker.shards.tokenize.engine import FASTOKENS, HF_TOKENIZERS, Engine, make_engine
from stoker.shards.tokenize.tokenizer import FrozenTokenizer, reload_tokenizer
from stoker.store.errors import DataError, LockHeld
from stoker.store.files import make_dir, opened, remove_tree


def main(task: dict[str, Any], report: Dialogue) -> dict[str, Any]:
    """Build, or find built, the set that the task describes."""
    one_thread()
    insist_on(task)
    wanted = BuildTask.from_mapping(task)
    make_dir(wanted.building)
    gc.disable()  # nothing here makes cycles, and looking for them with every batch costs a hundredth
    try:
        with _alone(wanted.building):
            return _result(wanted, report)
    finally:
        gc.enable()
        give_back()


def _result(task: BuildTask, report: Dialogue) -> dict[str, Any]:
    try:
        published = _build(task, report)
    except NoRoom:
        remove_tree(task.building)
        return {"status": "outgrown", "key": task.key}
    except BadParquet as error:
        remove_tree(task.building)
        if not still_staged(task.parquet, task.source_sha256, report):
            # Linked from the source, it can change under the reader: no finding against what was staged.
            return {"status": "changed", "key": task.key}
        return {"status": "bad", **error.finding.fields()}
    if published is None:
        return {"status": "recycled", "key": task.key, "rss_bytes": resident_bytes()}
    if published.manifest is None:
        return {"status": published.status, "reason": published.reason, "key": task.key}
    return {
        "status": published.status,
        "key": task.key,
        "manifest_sha256": published.manifest.sha256,
        "books": published.manifest.books.to_mapping(),
    }


def _build(task: BuildTask, report: Dialogue) -> Published | None:
    """None where a fresh process has to go on."""
    if os.path.lexists(task.target):
        return examine_target(task, report)
    if sealed_before(task, report):
        return publish(task, report, staged=still_staged(task.parquet, task.source_sha256, report))
    kept = _engines_for(task)
    engine = _engine_for(task, kept, report)
    with (
        closing(Trail(report, sha256=not task.source_xxh3)) as source_trail,
        closing(Trail(report)) as set_trail,
        closing(Build(task, engine, kept.reference, kept.loaded)) as build,
    ):
        if not build.run(report, source_trail, set_trail, kept.encoder):
            return None
        parquet = source_trail.finish(task.parquet)
        seal(build, report, set_trail)
        staged = still_staged_behind(build, parquet, report)
    return publish(task, report, staged=staged)


@dataclass(frozen=True)
class _Kept:
    """A tokenizer and its engines, kept for the next file; `loaded` is what the process holds with them."""

    asked: tuple[str, str]
    tokenizer: FrozenTokenizer
    engines: Engines | None  # None where the reference alone is asked for
    loaded: int
    encoder: EncodeThread = field(default_factory=EncodeThread)

    def reference(self) -> Engine:
        """The engine that every tokenizer has."""
        return self.engines.reference if self.engines else make_engine(HF_TOKENIZERS, self.tokenizer)


_kept: list[_Kept] = []  # one at most: a pipeline has one tokenizer, and an engine takes tens of megabytes


def _engine_for(task: BuildTask, kept: _Kept, report: Reporter) -> Engine:
    if kept.engines is None:
        return kept.reference()
    report("phase", phase="check_engine")
    engine, refused = kept.engines.choose(task.parquet, task.build.text_column, task.reader)
    if refused:
        report("engine", used=engine.name, refused=FASTOKENS, reason=refused)
    return engine


def _engines_for(task: BuildTask) -> _Kept:
    asked = (task.build.tokenizer_sha256, task.engine)
    if not _kept or _kept[0].asked != asked:
        if _kept:
            _kept.pop().encoder.renew()
        tokenizer = reload_tokenizer(task.tokenizer_file)
        if (tokenizer.sha256, tokenizer.vocab_size, tokenizer.eot) != (
            task.build.tokenizer_sha256,
            task.build.vocab_size,
            task.build.eot,
        ):
            raise DataError(
                f"{task.tokenizer_file}: not the tokenizer this dataset is pinned to; "
                "restore it, or raise dataset.version to build anew"
            )
        engines = None if task.engine == HF_TOKENIZERS else Engines(tokenizer)
        give_back()
        _kept.append(_Kept(asked, tokenizer, engines, resident_bytes()))
    return _kept[0]


@contextmanager
def _alone(building: Path) -> Iterator[None]:
    """Keep a second worker, one left over in a hung write say, off this building directory."""
    with opened(building, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeld(
                f"{building} is still being worked on by another worker; try again later"
            ) from error
        yield


if __name__ == "__main__":
    run_worker(main, many=True)
