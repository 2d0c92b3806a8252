"""The audit of one shard set: compares files, manifest and source record, and the parquet when deep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.corpus.records.dataset import DatasetPin
from stoker.corpus.records.sources import Books, Source
from stoker.shards.format.identity import BuildParameters
from stoker.shards.format.manifest import MANIFEST, Manifest
from stoker.shards.format.proof import inspect_set, prove_set
from stoker.store.direct import hash_file
from stoker.store.errors import StokerError


@dataclass(frozen=True)
class SetAudit:
    """The result of one set's audit."""

    books: Books | None  # by its manifest; None where that is unusable
    reread: bool  # whether its parquet was recounted
    findings: tuple[str, ...]


def audit_set(
    directory: Path, source: Source, pin: DatasetPin | None, *, deep: Sequence[Path] | None
) -> SetAudit:
    """Audits a published source's set; `deep` lists where its parquet may be, None for a quick look."""
    if not directory.is_dir():
        return SetAudit(None, False, (f"{directory}: missing, {source.path} is {source.state}",))
    try:
        found = inspect_set(directory)
    except OSError as error:
        return SetAudit(None, False, (f"{directory}: cannot be read: {error}",))
    where = directory / MANIFEST
    findings = [f"{directory / finding}" for finding in found.findings]
    findings += [f"{directory / name}: in no list of this set" for name in found.unknown]
    if found.manifest_sha256 is not None and found.manifest_sha256 != source.manifest_sha256:
        says = f"the record of {source.path} says {str(source.manifest_sha256)[:16]}"
        findings.append(f"{where}: sha256 {found.manifest_sha256[:16]}, {says}")
    if found.manifest is None:
        return SetAudit(None, False, tuple(findings))
    books = found.manifest.books.to_mapping()
    findings += [f"{where}: {finding}" for finding in _identity_findings(source, pin, found.manifest)]
    findings += [
        f"{where}: {figure} in the books, the record of {source.path} says {on_record}"
        for figure, on_record in _differences(
            books, {} if source.books is None else source.books.to_mapping()
        )
    ]
    reread = False
    if deep is not None:
        proof = prove_set(directory, key=source.key)
        if proof.verdict != "proven" and not found.findings:
            findings.append(f"{directory}: {proof.verdict}: {proof.reason}")
        counted, wrong = _recount(directory, source, pin, deep)
        reread = counted is not None
        findings += wrong
        findings += [
            f"{where}: {figure} in the books, recounted from the parquet of {source.path}: {on_record}"
            for figure, on_record in _differences(books, counted or {}, only=counted or {})
        ]
    return SetAudit(found.manifest.books, reread, tuple(findings))


def _identity_findings(source: Source, pin: DatasetPin | None, manifest: Manifest) -> Iterator[str]:
    wanted: dict[str, tuple[Any, Any]] = {
        "dataset": (manifest.dataset, source.dataset),
        "key": (manifest.key, source.key),
        "source sha256": (manifest.source_sha256, source.sha256),
        "source size": (manifest.source_size, source.size),
    }
    if pin is not None:
        wanted["build_id"] = (manifest.build_id, pin.build_id)
        wanted["tokenizer sha256"] = (manifest.tokenizer_sha256, pin.tokenizer.sha256)
        wanted["vocab_size"] = (manifest.vocab_size, pin.tokenizer.vocab_size)
        wanted["eot"] = (manifest.eot, pin.tokenizer.eot)
    for name, (on_record, recorded) in wanted.items():
        if on_record != recorded:
            yield f"{name} is {on_record}, on record is {recorded}"


def _recount(
    directory: Path, source: Source, pin: DatasetPin | None, candidates: Sequence[Path]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Returns the count of the first candidate that still has the source's content, and findings.

    Findings are an unreadable parquet, and row numbers of the set that differ from the parquet's.
    """
    if pin is None:
        return None, []
    for parquet in candidates:
        try:
            if hash_file(parquet).sha256 != source.sha256:
                continue
        except OSError:
            continue  # missing or unreadable now: try the next place, else rely on the record
        from stoker.shards.audit.recount import recount, row_findings  # noqa: PLC0415 - pyarrow, if deep alone

        try:
            counted = recount(parquet, BuildParameters.from_mapping(pin.build))
        except (StokerError, FileNotFoundError) as error:
            return None, [f"{parquet}: {error}"]
        try:
            wrong = row_findings(directory, counted)
        except (StokerError, OSError):
            wrong = []  # a missing file or a wrong size is a finding already
        return counted.books, [f"{directory}: {finding}" for finding in wrong]
    return None, []


def _differences(
    found: Mapping[str, Any],
    on_record: Mapping[str, Any],
    only: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> Iterator[tuple[str, Any]]:
    """Yields figures that differ, as ("tokens is 7", 8); with `only`, compares the names in it."""
    for name in sorted(only if only is not None else {**found, **on_record}):
        one, other = found.get(name), on_record.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            inner = None if only is None or name == "dropped" else only[name]
            yield from _differences(one, other, inner, f"{prefix}{name}.")
        elif one != other:
            yield f"{prefix}{name} is {one}", other
