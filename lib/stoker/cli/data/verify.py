"""`stoker verify`: proves shard sets, parquet files, checkpoints, models and downloads."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stoker.checkpoints.proof import prove_checkpoint
from stoker.cli.ask_daemon import become_owner
from stoker.cli.options import PATH, TEXT, counts, one_line, pipeline_file, plural
from stoker.cli.which_run import checkpoints_at
from stoker.cli.worker_jobs import WorkerFailed, Workers
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.landing import PARTS
from stoker.corpus.readers.reader import reader_of
from stoker.corpus.readers.table import READERS
from stoker.corpus.records.receipts import Receipt, read_receipts
from stoker.kit.terminal import Footer
from stoker.kit.workers.pool import Activity
from stoker.shards.format.proof import prove_set
from stoker.shards.format.reader import find_sets
from stoker.store.checksums import SUMS, prove_checksums
from stoker.store.errors import DataError, StorageError, UnavailableError, UnknownFormat, UsageError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import read_whole
from stoker.store.requests import file_request

EXITS = {"invalid": 1, "unknown": UnknownFormat.exit_code, "unreadable": 74, "proven": 0}  # the worst first
CACHED = "read through the page cache; this file system lets nothing past it"

HASH = Activity("hash", "stoker.corpus.source.hash_worker", is_reusable=True)
ROW = "{:<10}  {}  {}"
BAD = ("wrong", "missing", "unreadable")  # verdicts beside `true`, and `passed` of a receipt that changed

# A verdict, the reason unless proven, and further remarks.
Finding = tuple[str, str, Sequence[str]]
PATHS = click.argument("paths", nargs=-1, required=True, type=PATH)


@click.group(epilog="Example: stoker verify checkpoint /var/lib/stoker/fineweb/runs/main/checkpoints")
def verify() -> None:
    """Prove shard sets, parquet files, checkpoints, models or downloads, reading every byte.

    Exit codes: 1 the content of a file is wrong; 74 something could not be read, which proves nothing; 78 a
    newer Stoker wrote it.
    """


@verify.command(epilog="Example: stoker verify shards /srv/fast/fineweb/shards/fineweb-350bt")
@PATHS
def shards(paths: tuple[Path, ...]) -> int:
    """Prove the shard sets at PATHS.

    For a directory above sets, such as <hot>/shards, prove every set below it.
    """
    return _report(paths, find_sets, _shard_set)


@verify.command(epilog="Example: stoker verify parquet /data/fineweb --text-column text")
@PATHS
@click.option("--text-column", type=TEXT, default="text", help="The column that must hold text.")
def parquet(paths: tuple[Path, ...], text_column: str) -> int:
    """Check the parquet files at PATHS.

    Footer, schema, and every page of the text are read. For a directory, check every *.parquet below it.
    """

    def below(path: Path) -> list[Path]:
        found = (file for suffix in READERS for file in path.rglob(f"*{suffix}"))
        return sorted(found) if path.is_dir() else [path]

    return _report(paths, below, lambda path: _parquet(path, text_column))


@verify.command(epilog="Example: stoker verify checkpoint /var/lib/stoker/fineweb/runs/main/checkpoints")
@PATHS
def checkpoint(paths: tuple[Path, ...]) -> int:
    """Prove the checkpoints at PATHS whole.

    For a run's directory, its checkpoints/, or its mirror <warm>/checkpoints/<run>, prove every checkpoint in
    it. The command loads no checkpoint.
    """
    return _report(paths, checkpoints_at, _checkpoint)


@verify.command(epilog="Example: stoker verify model fineweb-1")
@PATHS
def model(paths: tuple[Path, ...]) -> int:
    """Prove the files of the models at PATHS by their SHA256SUMS.

    A model is a directory that stoker bundle or stoker fetch-model made. A file that is in no list counts as
    wrong, too. The command loads no model.
    """
    return _report(paths, lambda path: [path] if (path / SUMS).is_file() else [], _model)


def _report(
    paths: Iterable[Path], below: Callable[[Path], Sequence[Path]], prove: Callable[[Path], Finding]
) -> int:
    """Prints a verdict for each file or set at the paths as soon as it is known; returns the exit code."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist; name what to verify")
        if not (here := below(path)):
            raise UsageError(f"{path} holds nothing of this kind; name what to verify (see --help)")
        found += here
    verdicts = {"proven"}
    for path in found:
        try:
            verdict, reason, remarks = prove(path)
            verdicts.add(verdict)
        except UnknownFormat as newer:
            verdict, reason, remarks = "unreadable", str(newer), ()
            verdicts.add("unknown")
        click.echo(one_line(f"{path}: {verdict}" + (f": {reason}" if reason else "")))
        for remark in remarks:
            click.echo(one_line(f"{path}: note: {remark}"))
    return next(code for verdict, code in EXITS.items() if verdict in verdicts)


def _shard_set(path: Path) -> Finding:
    proof = prove_set(path)
    return _proven(proof, [f"{name} is in no list of this set" for name in proof.unknown])


def _proven(proof: Any, remarks: list[str]) -> Finding:
    return proof.verdict, proof.reason, [*remarks, *([CACHED] if proof.cached else [])]


def _parquet(path: Path, text_column: str) -> Finding:
    try:
        flaw = reader_of(path).preflight(path, text_column, decode=True)
    except OSError as error:
        return "unreadable", str(error), ()
    if flaw is None:
        return "proven", "", ()
    return "invalid", str(flaw), ()


def _checkpoint(path: Path) -> Finding:
    proof = prove_checkpoint(path)
    remarks = [f"{name} is in no list of this checkpoint, and was not opened" for name in proof.extra]
    return _proven(proof, remarks)


def _model(path: Path) -> Finding:
    try:
        _, difference = prove_checksums(path)
    except (DataError, StorageError) as error:
        return "invalid" if isinstance(error, DataError) else "unreadable", str(error), ()
    return ("invalid" if difference else "proven"), difference, ()


@verify.command(epilog="Example: stoker verify downloads /etc/stoker/fineweb.yaml --dispute")
@pipeline_file
@click.option("--dispute", is_flag=True, help="Ask the download watchdog to fetch wrong files again.")
@click.option("--accept", metavar="PATH", help="Accept this file of a folder, found rotten, as it is.")
def downloads(pipeline: Pipeline, dispute: bool, accept: str | None) -> int:
    """Hash FILE's source files against their receipts.

    Every file that is on disk is read. Prints a line for each file that is wrong, missing or unreadable, then
    a summary; other users of the disk go first. Files released on purpose do not count as missing.

    A file of a folder is rotten when its content changed while its size, time and inode did not: Stoker
    builds nothing from it until a good copy replaces it, or until --accept, which hashes nothing, accepts it.

    Exit codes: 1 something is wrong or missing; 69 the disk is not there; 74 something could not be read,
    which proves nothing; 130 interrupted, after a summary of the files that were read.
    """
    layout = pipeline.layout
    if not layout.receipts.is_dir():
        raise UsageError(f"{pipeline.state}: this pipeline never ran; nothing is here to verify")
    if dispute or accept is not None:
        become_owner(pipeline)
    damaged: list[Path] = []
    receipts = read_receipts(layout, pipeline.dataset.name, lambda record, _: damaged.append(record))
    if accept is not None:
        receipt = receipts.get(accept)
        if receipt is None or not receipt.rotten:
            raise UsageError(
                f"{accept} was not found rotten; stoker audit {pipeline.file} names the files that were"
            )
        # Its set is then built again, like that of an edited file.
        file_request(layout, DOWNLOAD_WATCHDOG, "accept", {"path": accept, "sha256": receipt.found})
        click.echo(one_line(f"asked the download watchdog to take {accept} as it is; it acts when it runs"))
        return 0
    check = Check(pipeline, receipts, dispute=dispute)
    try:
        check.run()
    except KeyboardInterrupt:
        click.echo("interrupted")
        raise
    finally:
        for line in (*check.summary(), *(f"note: {file} is damaged and was skipped" for file in damaged)):
            click.echo(one_line(line))
    if check.counts["wrong"] or check.counts["missing"]:
        return EXITS["invalid"]
    return EXITS["unreadable"] if check.counts["unreadable"] else 0


class Check:
    """A pass over the receipts; a receipt that changes meanwhile gets no verdict.

    Its file may have changed too.
    """

    def __init__(self, pipeline: Pipeline, receipts: Mapping[str, Receipt], *, dispute: bool) -> None:
        self.pipeline, self.dispute = pipeline, dispute
        self.receipts = [receipt for _, receipt in sorted(receipts.items())]
        self.files = [receipt for receipt in self.receipts if receipt.usable or receipt.rotten]
        self.counts: Counter[str] = Counter()
        self.is_cached = False
        self.disputed = self._done = 0
        self._size = sum(receipt.size for receipt in self.files)
        self._footer = Footer()

    def run(self) -> None:
        """Hashes every file whose size is that of its receipt, and records a verdict for each receipt."""
        if self.files:
            self._insist_on_the_disk()
        try:
            with Workers() as workers:
                for receipt in self.files:
                    self._judged(receipt, *self._look(receipt, workers))
        finally:
            self._footer.clear()

    def _insist_on_the_disk(self) -> None:
        """Raises UnavailableError where the disk is not mounted.

        Its files must not be called missing, still less be disputed.
        """
        root = self.pipeline.source_root
        mark = root / PARTS if self.pipeline.dataset.source.spec.is_fetched else root
        if not mark.is_dir():
            raise UnavailableError(f"{mark} is not there although files are receipted in it; mount the disk")

    def _look(self, receipt: Receipt, workers: Workers) -> tuple[str, str]:
        """Returns a file's verdict and reason."""
        root, path = self.pipeline.source_root, Path(receipt.file)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return "missing", ""
        except OSError as error:
            return "unreadable", error.strerror or str(error)
        if path != root / receipt.path:
            return "missing", f"its receipt says {path}, which is not below {root}"
        if not stat.S_ISREG(found.st_mode) or found.st_size != receipt.size:
            return "wrong", f"no file of {receipt.size} bytes, as its receipt says: {found.st_size} bytes"
        task = {"root": str(root), "path": receipt.path, "size": found.st_size}
        task |= {"mtime_ns": found.st_mtime_ns, "inode": found.st_ino}
        hasher = replace(HASH, silent_s=self.pipeline.download.stall)
        try:
            result = workers.run(hasher, task, "it could not be hashed", self._show)
        except WorkerFailed as failed:
            return "unreadable", str(failed)
        self.is_cached |= bool(result.get("cached"))
        return _verdict(receipt, result)

    def _judged(self, receipt: Receipt, verdict: str, reason: str) -> None:
        if verdict == "missing":
            self._insist_on_the_disk()  # the disk may have been unmounted meanwhile
        self._done += receipt.size
        if verdict != "true" and not self._stands(receipt):
            verdict = "passed"
        is_first = not any(self.counts[other] for other in BAD)
        self.counts[verdict] += 1  # before its line: an interrupt may come between
        if verdict in BAD:
            self._footer.clear()
            if is_first:
                click.echo(ROW.format("verdict", "file", "why"))
            click.echo(one_line(ROW.format(verdict, receipt.file, reason).rstrip()))
        if self.dispute and (verdict in ("wrong", "missing") or (verdict == "true" and receipt.rotten)):
            # Filed at once, so that an interrupted pass has reported its findings.
            asked = {"path": receipt.path, "sha256": receipt.sha256}
            file_request(self.pipeline.layout, DOWNLOAD_WATCHDOG, "dispute", asked)
            self.disputed += 1

    def _stands(self, receipt: Receipt) -> bool:
        """Returns whether the receipt is unchanged: it may have been released or renewed meanwhile."""
        file = self.pipeline.layout.receipt(receipt.dataset, receipt.path)
        record = read_whole(file)
        return record is not None and Receipt.from_record(record) == receipt

    def _show(self, hashed: Mapping[str, Any]) -> None:
        done = self._done + hashed["bytes"]
        share = f"{100 * done / max(1, self._size):.1f} % of {format_bytes(self._size)}"
        words = [f"{self.counts.total():,}/{len(self.files):,} files", share, *self._bad()]
        self._footer.show(lambda width: "  ".join(words)[:width])

    def _bad(self) -> list[str]:
        return [f"{self.counts[verdict]:,} {verdict}" for verdict in BAD if self.counts[verdict]]

    def summary(self) -> Iterator[str]:
        """Yields the counts of verdicts, and of files that were not read."""
        changed = [f"{self.counts['passed']:,} changed meanwhile"] if self.counts["passed"] else []
        found = ", ".join([f"{self.counts['true']:,} true", *self._bad(), *changed])
        yield f"{plural(self.counts.total(), 'file')}, {format_bytes(self._done)}: {found}"
        away = Counter(one.state.replace("_", " ") for one in self.receipts if not (one.usable or one.rotten))
        away["not reached"] = len(self.files) - self.counts.total()
        if any(away.values()):
            yield f"not checked: {counts(dict(sorted(away.items())))}"
        if count := sum(receipt.state == "unproven" for receipt in self.receipts):
            such = f"{plural(count, 'file')} came without a length or a sum, unproven"
            yield f"note: {such}: nothing shows whether it is whole"
        if self.is_cached:
            yield "note: read through the page cache where the file system lets nothing past it"
        if self.disputed:
            yield f"asked the download watchdog to fetch {self.disputed:,} again; it acts when it runs"
        elif self.counts["wrong"] or self.counts["missing"]:
            yield "with --dispute the download watchdog fetches them again"


def _verdict(receipt: Receipt, result: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the verdict and the reason for a file's hash."""
    if result["status"] == "missing":
        return "missing", ""
    if result["status"] == "changed":
        return "unreadable", "it changed while it was read"
    if result["sha256"] == receipt.sha256:
        return "true", ""
    note = " (through the page cache)" if result["cached"] else ""
    return "wrong", f"sha256 {result['sha256']}, its receipt says {receipt.sha256}{note}"
