"""The worker that builds one shard set: `python -m stoker.shards.build_worker`, one task on standard input.

Messages: `phase` (open, encode, commit, seal_hash, seal_manifest, seal_sums, publish) and `commit` with how
far the durable part reaches. Result: `status` published or existed with the books, else bad, changed or
target_invalid with the reason. A disk that cannot be read or written now is an error, exit code 74.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.kit.worker_main import run_worker
from stoker.shards.builder import Build, BuildTask, Reporter
from stoker.shards.engine import make_engine
from stoker.shards.parquet import BadParquet
from stoker.shards.sealing import Published, examine_target, publish, seal, sealed_before, still_staged
from stoker.shards.tokenizer import load_tokenizer
from stoker.store.errors import DataError, LockHeld
from stoker.store.files import make_dir, opened, remove_tree


def main(task: dict[str, Any], report: Reporter) -> dict[str, Any]:
    """Build, or find built, the set that the task describes."""
    one_thread()
    wanted = BuildTask.from_mapping(task)
    make_dir(wanted.building)
    with _alone(wanted.building):
        try:
            published = _build(wanted, report)
        except BadParquet as error:
            remove_tree(wanted.building)
            if not still_staged(wanted.parquet, wanted.source_sha256, report):
                # Linked from the source, it can change under the reader: no finding against what was staged.
                return {"status": "changed", "key": wanted.key}
            return {"status": "bad", **error.fields()}
    if published.manifest is None:
        return {"status": published.status, "reason": published.reason, "key": wanted.key}
    return {
        "status": published.status,
        "key": wanted.key,
        "manifest_sha256": published.manifest.sha256,
        "books": published.manifest.books.to_mapping(),
    }


def one_thread() -> None:
    """Keep Arrow and HF tokenizers to the calling thread: workers scale by processes, which is faster."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())


def _build(task: BuildTask, report: Reporter) -> Published:
    if os.path.lexists(task.target):
        return examine_target(task, report)
    if not sealed_before(task, report):
        tokenizer = load_tokenizer(task.tokenizer_file)
        if (tokenizer.sha256, tokenizer.vocab_size, tokenizer.eot) != (
            task.build.tokenizer_sha256,
            task.build.vocab_size,
            task.build.eot,
        ):
            raise DataError(
                f"{task.tokenizer_file}: not the tokenizer this dataset is pinned to; "
                "restore it, or raise dataset.version to build anew"
            )
        build = Build(task, make_engine(task.engine, tokenizer))
        with closing(build.set):
            build.run(report)
            seal(build, report)
    return publish(task, report)


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
