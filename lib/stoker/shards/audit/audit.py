"""The audit of the data half: compares pin, source records, manifests and files, recounted from disk.

Reads only. When records change during a look the audit looks again, so that a running pipeline causes no
false finding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.records.sources import PUBLISHED, Books, Source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.shards.audit.record_audit import Records, record_findings, source_findings
from stoker.shards.audit.set_audit import audit_set
from stoker.shards.format.identity import set_key
from stoker.shards.format.manifest import MANIFEST
from stoker.store.layout import HotLayout, WarmLayout
from stoker.store.record import parse_json

LOOKS = 3  # at most, at records that keep changing
IMPORTED = ("sets", "tokens", "documents", "documents_not_known")
MOVING_S = 2.0  # from the end of a set's move to its record, at most


@dataclass(frozen=True)
class DataAudit:
    """The books summed over every published set, and the findings, each naming file and figure.

    With no published set there is nothing to balance: that is a finding too.
    """

    sources: Mapping[str, int]
    rows: int  # of built sets, like documents and dropped
    documents: int
    dropped: Mapping[str, int]
    tokens: Mapping[str, int]  # of all sets
    imported: Mapping[str, int]  # counts of imported sets, and how many have an unknown number of documents
    changed: tuple[str, ...]  # files edited after their set was built; that set stays beside the edit's
    unproven: tuple[str, ...]  # files that came without a length or a checksum to compare with
    recounted: tuple[str, ...]  # kinds of figures that were recounted from disk
    on_record: tuple[str, ...]  # kinds of figures that only records vouch for
    findings: tuple[str, ...]

    def figures(self) -> dict[str, Any]:
        """Returns the data's part of `stoker audit --json`."""
        others = ("recounted", "on_record", "findings")
        return {name: value for name, value in vars(self).items() if name not in others}


def audit_sets(pipeline: Pipeline, deep: bool = False) -> DataAudit:
    """Audits a pipeline's shard sets.

    `deep` hashes every byte and recounts the parquet files that still exist.
    """
    for _ in range(LOOKS):
        look = _Look(pipeline, deep)
        audit = look.audit()
        if not audit.findings or (look.records_stand() and not look.misplaced):
            break
        if look.misplaced:  # a move may have ended just now
            time.sleep(MOVING_S)
    return audit


class _Look:
    """One look at all records and files of the pipeline's data."""

    def __init__(self, pipeline: Pipeline, deep: bool) -> None:
        self.deep = deep
        self.pipeline = pipeline
        self.layout, self.hot = pipeline.layout, HotLayout(pipeline.hot)
        self.dataset = pipeline.dataset.name
        self.sums: Counter[str] = Counter()  # of the books of published sets
        self.dropped: Counter[str] = Counter()
        self.imported: Counter[str] = Counter()
        self.reread = self.unseen = 0  # sets recounted from parquet; sets on an absent disk
        self.warm, self.misplaced = _warm(pipeline), False
        self.records = Records.read(self.layout, self.dataset)
        self.sources, self.pin = self.records.sources, self.records.pin
        self.findings = list(self.records.problems)

    def records_stand(self) -> bool:
        """Whether the records are unchanged since this look began."""
        return Records.read(self.layout, self.dataset) == self.records

    def audit(self) -> DataAudit:
        """Makes every check; the findings are in listing order."""
        published = [source for source in self.sources.values() if source.state in PUBLISHED]
        if not published and self.pipeline.has_data:
            self.findings.append(
                f"{self.layout.sources}: no shard set of {self.dataset} is on record: nothing to audit"
            )
        self.findings += record_findings(self.pipeline, self.records, deep=self.deep)
        for source in self.sources.values():
            where = self.layout.source(self.dataset, source.path)
            found = source_findings(source, self.records, warm=self.pipeline.warm is not None)
            self.findings += [f"{where}: {finding}" for finding in found]
            self.findings += self._set_findings(source)
        self.findings += self._folder_findings()
        counts = Counter(source.state for source in self.sources.values())
        built = len(published) - self.imported["sets"]
        deep = [*(["hashes"] if self.deep else []), *(["parquet rows"] if self.reread else [])]
        on_record = [] if not built or self.reread == built else ["parquet rows"]
        on_record += ["sets on a warm disk that is not there now"] if self.unseen else []
        return DataAudit(
            sources={"total": len(self.sources), "proven": len(published)}
            | {state: counts[state] for state in ("quarantined", "duplicate")},
            rows=self.sums["rows"],
            documents=self.sums["documents"],
            dropped=dict(sorted(self.dropped.items())),
            tokens={split: self.sums[split] for split in ("train", "val")},
            imported={what: self.imported[what] for what in IMPORTED},
            changed=tuple(sorted({source.former for source in published if source.former is not None})),
            unproven=tuple(
                path for path, receipt in self.records.receipts.items() if receipt.state == "unproven"
            ),
            recounted=("manifests", "sizes", *deep),
            on_record=tuple(on_record),
            findings=tuple(self.findings),
        )

    def _add(self, books: Books) -> None:
        """Adds a published set's books to the sums."""
        self.sums.update(train=books.train_tokens, val=books.val_tokens)
        if books.is_imported:
            self.imported.update(sets=1, tokens=books.tokens, documents=books.documents or 0)
            self.imported["documents_not_known"] += books.documents is None
        else:
            self.sums.update(rows=books.rows or 0, documents=books.documents or 0)
            self.dropped.update(dict(books.dropped or ()))

    def _set_findings(self, source: Source) -> Sequence[str]:
        """Returns the findings about the source's set, if the source should have one."""
        if source.state not in PUBLISHED or source.key is None:
            return ()
        hot = self.hot.shard_set(self.dataset, str(source.key))
        copied = None if self.warm is None else self.warm.shard_set(self.dataset, str(source.key))
        is_on_warm = source.evicted or (source.evicting and not hot.exists())
        directory = copied if is_on_warm else hot
        if directory is None:  # the record's books are the only evidence
            self.unseen += 1
            if source.books is not None and not source.books.flaw():  # a flaw is a finding already
                self._add(source.books)
            return ()
        receipt = self.records.receipts.get(source.path)
        places = [self.hot.parquet / parquet_name(source), *([Path(receipt.file)] if receipt else [])]
        audit = audit_set(directory, source, self.pin, deep=places if self.deep else None)
        misplaced = []
        if source.evicted and not source.evicting and hot.exists():
            misplaced.append(f"{hot}: here, the record of {source.path} says that it is on warm only")
        elif source.on_warm and not source.evicted and copied is not None and not copied.is_dir():
            misplaced.append(f"{copied}: missing, the record of {source.path} says that its copy was proven")
        self.misplaced |= bool(misplaced)
        if audit.books is not None:
            self._add(audit.books)
        self.reread += audit.reread
        findings = [*audit.findings, *misplaced]
        if self.deep and source.on_warm and not source.evicted and copied is not None and copied.is_dir():
            findings += audit_set(copied, source, self.pin, deep=()).findings
        return findings

    def _folder_findings(self) -> Iterator[str]:
        """Yields sets without a source; a set published just now, without its record yet, is expected."""
        build = None if self.pin is None else self.pin.build_id
        expected = {source.key[:16] for source in self.sources.values() if source.key is not None}
        if build is not None:
            expected |= {set_key(source.sha256, build)[:16] for source in self.sources.values()}
        disks = [disk for disk in (self.hot, self.warm) if disk is not None]
        for folder in [disk.shards(self.dataset) for disk in disks]:
            for name in _names(folder):
                if name not in expected and not self._of_earlier_version(folder / name):
                    yield f"{folder / name}: an extra set, no source record names it"

    def _of_earlier_version(self, directory: Path) -> bool:
        """Whether a set belongs to a build before dataset.version was raised.

        Such sets stay until no run needs them.

        Its format may be older too, so only the manifest's identity is read.
        """
        if self.pin is None or self.pin.version == 1:
            return False
        try:
            manifest = parse_json((directory / MANIFEST).read_bytes())
            build, source = str(manifest["build_id"]), str(manifest["source"]["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return build != self.pin.build_id and set_key(source, build)[:16] == directory.name


def _warm(pipeline: Pipeline) -> WarmLayout | None:
    """Returns the warm disk if it is mounted; the empty folder of an unmounted disk proves no loss."""
    warm = pipeline.warm_layout
    try:
        return warm if warm is not None and warm.owner_lock.exists() else None
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    """Returns the names in a folder, without copies in progress."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
