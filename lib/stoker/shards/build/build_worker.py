"""Builds shard sets, a task a line of its input: `python -m stoker.shards.build.build_worker`.

Messages: `phase` (check_engine, open, encode, commit, seal_hash, seal_manifest, publish), `commit` with how
far the durable part reaches, `engine` where the fast engine was given up for the reference, and `room` with
the bytes written and needed where the set outgrows its task's `room`; the worker then waits for the line
{"room": bytes}. Result: `status` published or existed with the books, else bad, changed or target_invalid
with the reason; outgrown, after removing the partial set, where that line gave too little; recycled with the
memory held, when a fresh process has to continue from the last commit. A disk that cannot be read or written
now is an error, exit code 74.
"""

from __future__ import annotations

from stoker.shards.format.thread_limits import one_thread

# isort: split
import gc
import os
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.reader import reader_of
from stoker.kit.lock import hold_directory
from stoker.kit.workers.child import Report, run_worker
from stoker.shards.build.builder import Build, BuildTask, EncodeThread, NoRoom
from stoker.shards.build.engine_check import Engines
from stoker.shards.build.memory_use import give_back, resident_bytes
from stoker.shards.build.publish import examine_target, publish, seal, still_staged, still_staged_behind
from stoker.shards.build.readback import Trail
from stoker.shards.tokenize.engine import FASTOKENS, HF_TOKENIZERS, GivenIds
from stoker.shards.tokenize.tokenizer import reload_tokenizer
from stoker.store.errors import DataError
from stoker.store.files import make_dir, remove_tree


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Builds the set of the task, or proves the set that is already at its target."""
    one_thread()
    wanted = BuildTask.from_mapping(task)
    make_dir(wanted.building)
    # A build makes no cycles, and a search for them with every batch costs a hundredth of the time
    gc.disable()
    try:
        # An earlier worker may still be stuck in a hung write.
        held = f"{wanted.building} is still being worked on by another worker; try again later"
        with hold_directory(wanted.building, held):
            return {"key": wanted.key, **_result(wanted, report)}
    finally:
        gc.enable()
        give_back()


def _result(task: BuildTask, report: Report) -> dict[str, Any]:
    if os.path.lexists(task.target):
        return examine_target(task, report)
    try:
        return _build(task, report)
    except NoRoom:
        result: dict[str, Any] = {"status": "outgrown"}
    except BadFile as error:
        result = {"status": "bad", **error.finding.fields()}
        if not still_staged(task.parquet, task.source_sha256, report):
            # A parquet linked from the source can change during the read: that is no finding on the staged
            # content.
            result = {"status": "changed"}
    remove_tree(task.building)
    return result


def _build(task: BuildTask, report: Report) -> dict[str, Any]:
    reader_of(task.parquet)  # loaded now, so that it counts as loaded and not as the text's
    kept = _engines_for(task)
    if task.engine != HF_TOKENIZERS and not task.build.tokens:
        report("phase", phase="check_engine")
    engine, refused = kept.engines.choose(task.parquet, task.build.text_column)
    give_back()
    if refused:
        report("engine", used=engine.name, refused=FASTOKENS, reason=refused)
    with (
        closing(Trail(report, sha256=not task.source_xxh3)) as source_trail,
        closing(Trail(report)) as set_trail,
        closing(Build(task, engine, kept.engines.reference, kept.loaded)) as build,
    ):
        if not build.run(report, source_trail, set_trail, kept.encoder):
            return {"status": "recycled", "rss_bytes": resident_bytes()}
        parquet = source_trail.finish(task.parquet)
        manifest = seal(build, report, set_trail)
        if still_staged_behind(build, parquet.result(), report):
            return publish(task, manifest, report)
    remove_tree(task.building)
    return {"status": "changed"}


@dataclass(frozen=True)
class _Kept:
    """A tokenizer's engines, kept for the next file; `loaded` is the resident bytes with them."""

    asked: tuple[str, str, bool]
    engines: Engines | GivenIds
    loaded: int
    encoder: EncodeThread = field(default_factory=EncodeThread)


_kept: list[_Kept] = []  # at most one: a pipeline has one tokenizer, and an engine takes tens of megabytes


def _engines_for(task: BuildTask) -> _Kept:
    asked = (task.build.tokenizer_sha256, task.engine, bool(task.build.tokens))
    if not _kept or _kept[0].asked != asked:
        if _kept:
            _kept.pop().encoder.renew()
        tokenizer = reload_tokenizer(task.tokenizer_file)
        if tokenizer.sha256 != task.build.tokenizer_sha256:
            raise DataError(
                f"{task.tokenizer_file}: not the tokenizer this dataset is pinned to; "
                "restore it, or raise dataset.version to build again"
            )
        engines: Engines | GivenIds = GivenIds(task.build.dtype)
        if not task.build.tokens:
            engines = Engines(tokenizer, fast=task.engine != HF_TOKENIZERS)
        give_back()
        gc.freeze()  # what stays needs no search for cycles with every file
        _kept.append(_Kept(asked, engines, resident_bytes()))
    return _kept[0]


if __name__ == "__main__":
    run_worker(main, many=True)
