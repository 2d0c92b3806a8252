"""Sealing: from committed data files to a published shard set, by one rename."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.kit.process import own_peak_rss
from stoker.kit.workers.child import Report, heartbeat
from stoker.shards.build.builder import Build, BuildTask
from stoker.shards.build.commit import PROGRESS, origin_of
from stoker.shards.build.readback import ReadBack, Trail
from stoker.shards.build.shard_writer import GrowingFile
from stoker.shards.format.manifest import BUILD_NOTE, DataFile, Manifest, write_manifest
from stoker.shards.format.proof import standing_set
from stoker.store.direct import hash_file
from stoker.store.errors import StorageError
from stoker.store.files import (
    canonical_json,
    make_dir,
    publish_dir,
    remove_tree,
    unlink_durably,
    write_atomic,
)
from stoker.store.record import utc_now


def seal(build: Build, report: Report, trail: Trail) -> Manifest:
    """Writes build note, manifest and sums of a fully committed build; returns the manifest.

    `trail` has read back earlier commits, and reads the rest now. Raises StorageError, after dropping the
    build, where the disk returns other bytes than were written.
    """
    task = build.task
    report("phase", phase="seal_hash")
    read = {file: trail.finish(file.path) for file in build.set.files}
    files = {
        file.path.name: DataFile(
            file.length, _as_written(task.building, file, read[file].result()), tokens, documents
        )
        for file, tokens, documents in build.set.data_files()
    }
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
    write_atomic(task.building / BUILD_NOTE, canonical_json(_build_note(build)) + b"\n")
    write_manifest(task.building, manifest)
    return manifest


def publish(task: BuildTask, manifest: Manifest, report: Report) -> dict[str, Any]:
    """Gives a sealed set its final name, unless a set has that name; returns the worker's result."""
    report("phase", phase="publish")
    unlink_durably(task.building / PROGRESS)
    make_dir(task.target.parent)
    try:
        publish_dir(task.building, task.target)
    except FileExistsError:
        return examine_target(task, report)
    return _standing("published", manifest)


def examine_target(task: BuildTask, report: Report) -> dict[str, Any]:
    """Judges a set that is at the target already; a right set makes the new build superfluous.

    Raises StorageError where it cannot be read now: that is no verdict.
    """
    proof = standing_set(task.target, task.key, heartbeat(report, task.target.name))
    if proof.manifest is None:
        return {"status": "target_invalid", "reason": proof.reason}
    remove_tree(task.building)
    return _standing("existed", proof.manifest)


def _standing(status: str, manifest: Manifest) -> dict[str, Any]:
    return {"status": status, "manifest_sha256": manifest.sha256, "books": manifest.books.to_mapping()}


def still_staged(parquet: Path, sha256: str, report: Report) -> bool:
    """Whether the file on hot has the staged content; raises StorageError, FileNotFoundError."""
    return hash_file(parquet, progress=heartbeat(report, parquet.name)).sha256 == sha256


def still_staged_behind(build: Build, read: ReadBack, report: Report) -> bool:
    """The same for a file that was hashed while the build read it.

    A file that was replaced or written to meanwhile is hashed again. Where staging recorded the xxh3_128 of
    the proven content, that is compared.
    """
    task = build.task
    if origin_of(task.parquet) != build.progress.origin:
        return still_staged(task.parquet, task.source_sha256, report)
    return read.xxh3 == task.source_xxh3 if task.source_xxh3 else read.sha256 == task.source_sha256


def _as_written(building: Path, file: GrowingFile, found: ReadBack) -> str:
    """Returns the sha256 of a file as read back from disk; raises StorageError unless it is as written."""
    if (found.size, found.xxh3) != (file.length, file.written.hexdigest()):
        remove_tree(building)
        raise StorageError(
            f"{file.path}: the disk gives back other bytes than were written; the build is dropped and "
            "made again; check this disk and this machine's memory"
        )
    return found.sha256


def _build_note(build: Build) -> dict[str, Any]:
    """Returns when and how the set was built: for people, not part of the set's identity."""
    refused = build.engine_refused or None
    return {
        "v": 1,
        "source": build.task.source_path,
        "time": utc_now(),
        "seconds": round(build.elapsed_s, 3),
        "max_rss_bytes": own_peak_rss(),
        "engine": {"name": build.engine.name, "version": build.engine.version, "refused": refused},
        "versions": {
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
            "python": platform.python_version(),
        },
    }
