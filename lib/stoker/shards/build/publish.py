"""Sealing: from committed data files to a published shard set, by one rename."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.kit.process.sampler import own_peak_rss
from stoker.kit.workers.heartbeat import heartbeat
from stoker.shards.build.builder import Build, BuildTask, Reporter
from stoker.shards.build.commit import PROGRESS, origin_of
from stoker.shards.build.readback import ReadBack, Trail
from stoker.shards.build.shard_writer import GrowingFile, documents_in
from stoker.shards.format.manifest import BUILD_NOTE, MANIFEST, SUMS, DataFile, Manifest, sums_text
from stoker.shards.format.proof import prove_set
from stoker.store.errors import StorageError
from stoker.store.files import (
    canonical_json,
    make_dir,
    publish_dir,
    remove_tree,
    unlink_durably,
    write_atomic,
)
from stoker.store.hashing import hash_file
from stoker.store.names import utc_now


@dataclass(frozen=True)
class Published:
    """What stands at the target: `status` is published, existed, changed or target_invalid."""

    status: str
    reason: str = ""
    manifest: Manifest | None = None


def seal(build: Build, report: Reporter, trail: Trail) -> None:
    """Write manifest, build note and sums of a build whose data is all committed.

    `trail` has read back what was durable earlier, and reads the rest now. Raises StorageError, the build
    dropped, where the disk gives back other bytes than were written.
    """
    task = build.task
    report("phase", phase="seal_hash")
    read = {file: trail.finish(file.path) for file in build.set.files}
    hashes = {file: _as_written(task.building, file, read[file].result()) for file in build.set.files}
    files: dict[str, DataFile] = {}
    for split in build.set.splits.values():
        for shard in split.files:
            tokens, documents = build.set.tokens_in(shard.tokens), documents_in(shard.ends)
            files[shard.tokens.path.name] = DataFile(
                shard.tokens.length, hashes[shard.tokens], tokens, documents
            )
            for told in (shard.ends, shard.rows):
                files[told.path.name] = DataFile(told.length, hashes[told])
    report("phase", phase="seal_manifest")
    manifest = Manifest(
        dataset=task.dataset,
        key=task.key,
        build_id=task.build_id,
        source_size=task.source_size,
        source_sha256=task.source_sha256,
        tokenizer_sha256=task.build.tokenizer_sha256,
        vocab_size=task.build.vocab_size,
        eot=task.build.eot,
        dtype=task.build.dtype,
        books=build.books,
        files=files,
    )
    Manifest.parse(manifest.to_bytes())  # what a reader would refuse is not published
    write_atomic(task.building / MANIFEST, manifest.to_bytes())
    write_atomic(task.building / BUILD_NOTE, canonical_json(_build_note(build)) + b"\n")
    report("phase", phase="seal_sums")
    sums = {name: file.sha256 for name, file in files.items()} | {MANIFEST: manifest.sha256}
    write_atomic(task.building / SUMS, sums_text(sums))


def publish(task: BuildTask, report: Reporter, *, staged: bool) -> Published:
    """Give a sealed set its final name, unless its source changed or the target is there already.

    `staged` is what was found of the parquet after it was read for the last time.
    """
    if not staged:
        remove_tree(task.building)
        return Published("changed", f"{task.parquet.name} is no longer what was staged")
    manifest = Manifest.parse((task.building / MANIFEST).read_bytes())
    report("phase", phase="publish")
    unlink_durably(task.building / PROGRESS)
    make_dir(task.target.parent)
    try:
        publish_dir(task.building, task.target)
    except FileExistsError:
        return examine_target(task, report)
    return Published("published", manifest=manifest)


def still_staged(parquet: Path, sha256: str, report: Callable[..., None]) -> bool:
    """Whether the file on hot is what was staged; raises StorageError, FileNotFoundError."""
    return hash_file(parquet, progress=heartbeat(report, parquet.name)).sha256 == sha256


def still_staged_behind(build: Build, read: Future[ReadBack], report: Callable[..., None]) -> bool:
    """The same, of a file that was hashed behind the build that read it.

    Unless it is another file by now, or was written to: then it is hashed as it is. Where staging told the
    xxh3_128 of what it proved to be the source, that is what is compared.
    """
    task = build.task
    found = read.result()
    if origin_of(task.parquet) != build.progress.origin:
        return still_staged(task.parquet, task.source_sha256, report)
    if task.source_xxh3:
        return found.xxh3 == task.source_xxh3
    return found.sha256 == task.source_sha256


def examine_target(task: BuildTask, report: Reporter) -> Published:
    """The verdict on a set that stands at the target already; a right one makes ours superfluous.

    Raises StorageError where it cannot be read now: that is no verdict.
    """
    proof = prove_set(task.target, key=task.key, progress=heartbeat(report, task.target.name))
    if proof.verdict == "unreadable":
        raise StorageError(f"{task.target}: {proof.reason}; check the disk and try again")
    if proof.verdict == "invalid":
        return Published("target_invalid", proof.reason)
    remove_tree(task.building)
    return Published("existed", manifest=proof.manifest)


def sealed_before(task: BuildTask, report: Reporter) -> bool:
    """Whether a set lies there that was sealed whole when its worker died, just before the rename."""
    if os.path.lexists(task.building / PROGRESS) or not os.path.lexists(task.building / SUMS):
        return False
    proof = prove_set(task.building, key=task.key, progress=heartbeat(report, task.building.name))
    return proof.verdict == "proven" and not proof.unknown


def _as_written(building: Path, file: GrowingFile, found: ReadBack) -> str:
    """The sha256 of what the disk gives back of a file, which is what was written."""
    if (found.size, found.xxh3) != (file.length, file.written.hexdigest()):
        remove_tree(building)
        raise StorageError(
            f"{file.path}: the disk gives back other bytes than were written; the build is dropped and "
            "made again; check this disk and this machine's memory"
        )
    return found.sha256


def _build_note(build: Build) -> dict[str, Any]:
    """When and how it was built: for people, not part of the set's identity."""
    return {
        "v": 1,
        "source": build.task.source_path,
        "time": utc_now(),
        "seconds": round(build.elapsed_s, 3),
        "max_rss_bytes": own_peak_rss(),
        "engine": {
            "name": build.engine.name,
            "version": build.engine.version,
            "refused": build.engine_refused or None,
        },
        "versions": {
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
            "python": platform.python_version(),
        },
    }
