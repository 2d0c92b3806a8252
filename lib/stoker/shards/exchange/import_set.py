"""The import of one place: recognised, surveyed, claimed, copied, sealed and published as a shard set.

Nothing is written before everything was read once and found right. The copy is the set's own: a hard link
would leave its bytes in other hands, and whoever prepares their data anew writes into the same file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.corpus.staging.durable_copy import insist_on_room
from stoker.shards.exchange.import_source import Found, ImportRefused, look_at, tokenizer_refusal
from stoker.shards.exchange.import_tokens import Stream, Survey, conclude, pieces, survey
from stoker.shards.exchange.import_writing import SetIdentity, SplitWriter, seal
from stoker.shards.format.heartbeat import heartbeat
from stoker.shards.format.identity import dtype_for, set_key
from stoker.shards.format.manifest import SPLITS, Manifest
from stoker.shards.format.proof import prove_set
from stoker.store.errors import StorageError
from stoker.store.files import make_dir, publish_dir, remove_tree
from stoker.store.names import new_id, utc_now

if TYPE_CHECKING:
    from stoker.shards.build.builder import Reporter

# Told what was found, gives the path under which it is on record now; None where another has its set.
Claim = Callable[[Survey, Found], str | None]


@dataclass(frozen=True)
class ImportTask:
    """One import; `building` and `shards` are directories on hot, `floor` the bytes to stay free there."""

    place: Path
    dataset: str
    build_id: str
    shard_tokens: int
    tokenizer_sha256: str
    vocab_size: int
    eot: int
    building: Path
    shards: Path
    floor: int
    stated_tokenizer: str | None
    trust_tokenizer: bool

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ImportTask:
        """Read it from a worker's input."""
        paths = {name: Path(values[name]) for name in ("place", "building", "shards")}
        return cls(**{**values, **paths})

    def target(self, content: Survey) -> Path:
        """Where the set of a content belongs."""
        return self.shards / set_key(content.sha256, self.build_id)[:16]


def import_place(task: ImportTask, report: Reporter, claim: Claim) -> dict[str, Any]:
    """Import it. `status` in the result is published, existed, on_record or target_invalid.

    Raises ImportRefused for what is not taken over, StorageError where a disk does not do what it should.
    """
    found = look_at(task.place, dtype_for(task.vocab_size))
    refusal = tokenizer_refusal(
        task.tokenizer_sha256, found.tokenizer, task.stated_tokenizer, trusted=task.trust_tokenizer
    )
    if refusal is not None:
        raise ImportRefused(f"{task.place}: {refusal}")
    told = heartbeat(report, task.place.name)

    def progress(done: int) -> None:
        report.raise_if_stopping()
        told(done)

    content = survey(found, vocab_size=task.vocab_size, eot=task.eot, progress=progress)
    report("phase", phase="surveyed")
    path = claim(content, found)
    if path is None:
        return {"status": "on_record"}
    if os.path.lexists(task.target(content)):
        return _examine(task, content, report)
    make_dir(task.building)
    insist_on_room(task.building, content.size, task.floor)
    building = task.building / f"import-{new_id()}"
    make_dir(building)
    try:
        report("phase", phase="copy")
        writers = _copy(task, found, content, building, progress)
        report("phase", phase="seal")
        note = _note(task, path, found)
        manifest = seal(
            building,
            _identity(task, content),
            writers,
            end_of_text=content.end_of_text,
            note=note,
            progress=progress,
        )
        report("phase", phase="publish")
        make_dir(task.shards)
        publish_dir(building, task.target(content))
    except FileExistsError:
        remove_tree(building)
        return _examine(task, content, report)
    except BaseException:
        with contextlib.suppress(StorageError):  # the first error matters; the next start sweeps what is left
            remove_tree(building)
        raise
    report("phase", phase="published")
    return _result("published", manifest, found)


def _copy(
    task: ImportTask, found: Found, content: Survey, building: Path, progress: Callable[[int], None]
) -> dict[str, SplitWriter]:
    """Read everything once more, into a set's files; refused unless it is what was surveyed."""
    cut = {"shard_tokens": task.shard_tokens, "eot": task.eot}
    writers = {
        split: SplitWriter(building, split, end_of_text=content.end_of_text, **cut) for split in SPLITS
    }
    streams = {split: Stream() for split in SPLITS}
    try:
        for split, piece in pieces(found, task.vocab_size, progress):
            streams[split].see(piece, task.eot)
            writers[split].append(piece)
        for writer in writers.values():
            writer.finish()
    finally:
        for writer in writers.values():
            writer.close()
    if conclude(streams, eot=task.eot, dtype=dtype_for(task.vocab_size)) != content:
        raise ImportRefused(f"{task.place}: it changed while it was read; import it when it is at rest")
    return writers


def _examine(task: ImportTask, content: Survey, report: Reporter) -> dict[str, Any]:
    """The verdict on a set that stands at the target already.

    Raises StorageError where it cannot be read now: that is no verdict.
    """
    target, key = task.target(content), set_key(content.sha256, task.build_id)
    proof = prove_set(target, key=key, progress=heartbeat(report, target.name))
    if proof.verdict == "unreadable":
        raise StorageError(f"{target}: {proof.reason}; check the disk and try again")
    if proof.manifest is None:
        return {"status": "target_invalid", "reason": proof.reason}
    return _result("existed", proof.manifest, None)


def _identity(task: ImportTask, content: Survey) -> SetIdentity:
    return SetIdentity(
        dataset=task.dataset,
        key=set_key(content.sha256, task.build_id),
        build_id=task.build_id,
        source_size=content.size,
        source_sha256=content.sha256,
        tokenizer_sha256=task.tokenizer_sha256,
        vocab_size=task.vocab_size,
        eot=task.eot,
    )


def _note(task: ImportTask, path: str, found: Found) -> dict[str, Any]:
    """Where it came from: for people, not part of the set's identity."""
    return {
        "v": 1,
        "source": path,
        "time": utc_now(),
        "imported": {
            "from": found.form,
            "place": str(task.place),
            "files": len(found.files),
            "tokenizer": found.tokenizer,
            "notes": list(found.notes),
        },
    }


def _result(status: str, manifest: Manifest, found: Found | None) -> dict[str, Any]:
    return {
        "status": status,
        "key": manifest.key,
        "books": manifest.books.to_mapping(),
        "manifest_sha256": manifest.sha256,
        "notes": [] if found is None else list(found.notes),
    }
