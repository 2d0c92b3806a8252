"""`stoker verify downloads`: what receipts call verified is hashed again, past the page cache."""

from __future__ import annotations

import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from stoker.cli.ask_daemon import become_owner
from stoker.cli.options import one_line, pipeline_file
from stoker.cli.worker_jobs import Job, tidy_on_term, work_off
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_duration
from stoker.corpus.fetch.landing import PARTS
from stoker.corpus.records.by_path import by_path
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.record_dir import each_record
from stoker.kit.status_line import Footer
from stoker.kit.workers.parent import WorkerExit
from stoker.observe.rate import Pace
from stoker.store.errors import UnavailableError, UsageError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import RecordDamaged, read_record
from stoker.store.requests import file_request

EXIT_FINDING, EXIT_UNREADABLE = 1, 74
_ROW = "{:<10}  {}  {}"
TRIES = 3  # for a file that changes while it is read
OVER_S = 30.0

Verdict = Literal["true", "wrong", "missing", "unreadable", "passed"]
_BAD: tuple[Verdict, ...] = ("wrong", "missing", "unreadable")


@click.command(
    short_help="Prove the source's files.",
    epilog="Example: stoker verify downloads /etc/stoker/fineweb.yaml --dispute",
)
@pipeline_file
@click.option("--dispute", is_flag=True, help="Have the download watchdog bring again what is wrong.")
@click.option("--accept", metavar="PATH", help="Take this file of a folder as it is, which was found rotten.")
def downloads(file: Path, dispute: bool, accept: str | None) -> int:
    """Hash every source file of FILE that is here, and hold it against its receipt.

    Prints those that are wrong, missing or could not be read, a line each, then a summary; others that need
    the disk come first. download.files_at_once are read at a time. Files that were released on purpose are
    not missing.

    A file of a folder is rotten when its content changed while its size, time and inode did not: nothing is
    built of it until a good copy is put in its place, or until --accept, which hashes nothing, takes it.

    Exit codes: 1 something is wrong or missing; 69 the disk is not there; 74 something could not be read,
    which proves nothing; 130 interrupted, after a summary of what was seen.
    """
    pipeline = load_pipeline(file)
    if not pipeline.layout.receipts.is_dir():
        raise UsageError(f"{pipeline.state}: this pipeline never ran; nothing is here to verify")
    if dispute or accept is not None:
        become_owner(pipeline)
    if accept is not None:
        return _accept(pipeline, accept)
    damaged: list[Path] = []
    check = Check(pipeline, _receipts(pipeline, damaged), dispute=dispute)
    if check.files:
        _insist_on_the_disk(pipeline)
    try:
        with tidy_on_term():
            check.run()
    except KeyboardInterrupt:
        click.echo("interrupted")
        raise
    finally:
        for line in (*check.summary(), *(f"note: {file} is damaged and was passed over" for file in damaged)):
            click.echo(one_line(line))
    if check.counts["wrong"] or check.counts["missing"]:
        return EXIT_FINDING
    return EXIT_UNREADABLE if check.counts["unreadable"] else 0


def _accept(pipeline: Pipeline, path: str) -> int:
    """Ask the watchdog to take a rotten file as it is; its set is then built as that of an edited file."""
    try:
        receipt = Receipt.from_record(read_record(pipeline.layout.receipt(pipeline.dataset.name, path)))
    except FileNotFoundError:
        receipt = None
    if receipt is None or not receipt.rotten:
        raise UsageError(
            f"{path} was not found rotten; stoker audit {pipeline.file} names the files that were"
        )
    asked = {"path": path, "sha256": receipt.found}
    file_request(pipeline.layout, DOWNLOAD_WATCHDOG, "accept", asked)
    click.echo(one_line(f"asked the download watchdog to take {path} as it is; it acts when it runs"))
    return 0


def _is_looked_at(receipt: Receipt) -> bool:
    return receipt.usable or receipt.rotten


def _receipts(pipeline: Pipeline, damaged: list[Path]) -> dict[str, Receipt]:
    def note(file: Path, _: RecordDamaged) -> None:
        damaged.append(file)

    found = each_record(pipeline.layout.receipts, pipeline.dataset.name, Receipt.from_record, note)
    return by_path(found)


def _insist_on_the_disk(pipeline: Pipeline) -> None:
    """An unmounted disk is no reason to call all its files missing, least of all to dispute them."""
    root = pipeline.source_root
    mark = root if pipeline.dataset.source.kind == "folder" else root / PARTS
    if not mark.is_dir():
        raise UnavailableError(f"{mark} is not there although files are receipted in it; mount the disk")


@dataclass
class Check:
    """One pass over the receipts; nothing is told of one that changes meanwhile, for its content may too."""

    pipeline: Pipeline
    receipts: Mapping[str, Receipt]
    dispute: bool
    counts: Counter[Verdict] = field(default_factory=Counter)
    cached: int = 0
    disputed: int = 0
    _footer: Footer = field(default_factory=Footer)
    _pace: Pace = field(default_factory=lambda: Pace(OVER_S))
    _done: int = 0  # bytes of the files that are done
    _read: dict[str, int] = field(default_factory=dict)  # and of those in hand
    _again: list[tuple[Receipt, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = [receipt.size for _, receipt in self.receipts.items() if _is_looked_at(receipt)]
        self.files, self._size = len(sizes), sum(sizes)

    def run(self) -> None:
        """Look at each, and hash what has the size that its receipt says."""
        try:
            todo: Iterator[tuple[Receipt, int]]
            todo = ((each, 1) for _, each in self.receipts.items() if _is_looked_at(each))
            at_once = self.pipeline.download.files_at_once
            while True:
                for job, ended in work_off(self._jobs(todo), at_once, warm=True):
                    receipt, turn = job.note
                    self._ended(receipt, turn, ended)
                if not self._again:
                    break
                todo, self._again = iter(self._again), []
        finally:
            self._footer.clear()

    def _jobs(self, todo: Iterator[tuple[Receipt, int]]) -> Iterator[Job]:
        for receipt, turn in todo:
            path, root = Path(receipt.file), self.pipeline.source_root
            if path != root / receipt.path:
                self._tell(receipt, "missing", f"its receipt says {path}, which is not below {root}")
                continue
            try:
                found = path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                self._tell(receipt, "missing")
                continue
            except OSError as error:
                self._tell(receipt, "unreadable", error.strerror or str(error))
                continue
            if not stat.S_ISREG(found.st_mode):
                self._tell(receipt, "wrong", "it is not a regular file")
            elif found.st_size != receipt.size:
                self._tell(receipt, "wrong", f"{found.st_size} bytes, its receipt says {receipt.size}")
            else:
                task = {"root": str(root), "path": receipt.path, "size": found.st_size}
                task |= {"mtime_ns": found.st_mtime_ns, "inode": found.st_ino}
                yield Job(
                    "stoker.corpus.source.hash_worker",
                    task,
                    self.pipeline.download.stall,
                    note=(receipt, turn),
                    hear=self._heard(receipt.path),
                )

    def _heard(self, path: str) -> Callable[[object, Mapping[str, Any]], None]:
        def hear(_: object, message: Mapping[str, Any]) -> None:
            if message["kind"] == "hashed":
                self._read[path] = int(message["bytes"])
                self._show()

        return hear

    def _ended(self, receipt: Receipt, turn: int, ended: WorkerExit) -> None:
        self._read.pop(receipt.path, None)
        result = ended.result
        if result is None:
            self._tell(receipt, "unreadable", ended.reason())
        elif result["status"] == "missing":
            self._tell(receipt, "missing")
        elif result["status"] == "changed" and turn < TRIES:
            self._again.append((receipt, turn + 1))
        elif result["status"] == "changed":
            self._tell(receipt, "unreadable", "it changes while it is read")
        else:
            self.cached += bool(result["cached"])
            if result["sha256"] == receipt.sha256:
                self._tell(receipt, "true")
            else:
                said = f"sha256 {result['sha256']}, its receipt says {receipt.sha256}"
                note = " (through the page cache)" if result["cached"] else ""
                self._tell(receipt, "wrong", said + note)

    def _tell(self, receipt: Receipt, verdict: Verdict, reason: str = "") -> None:
        if verdict == "missing":
            _insist_on_the_disk(self.pipeline)  # it may have gone meanwhile
        self._done += receipt.size
        if verdict != "true" and not self._stands(receipt):
            verdict = "passed"
        self.counts[verdict] += 1
        if verdict in _BAD:
            self._footer.clear()
            if self.counts.total() - self.counts["true"] - self.counts["passed"] == 1:
                click.echo(_ROW.format("verdict", "file", "why").rstrip())
            click.echo(one_line(_ROW.format(verdict, receipt.file, reason).rstrip()))
        wrong = verdict in ("wrong", "missing") or (verdict == "true" and receipt.rotten)  # no more, that is
        if wrong and self.dispute:
            # Filed at once: an interrupted look has told what it found.
            asked = {"path": receipt.path, "sha256": receipt.sha256}
            file_request(self.pipeline.layout, DOWNLOAD_WATCHDOG, "dispute", asked)
            self.disputed += 1
        self._show()

    def _stands(self, receipt: Receipt) -> bool:
        """Whether the receipt still says the same: it may have been released or renewed while we looked."""
        file = self.pipeline.layout.receipt(receipt.dataset, receipt.path)
        try:
            return Receipt.from_record(read_record(file)) == receipt
        except (FileNotFoundError, RecordDamaged):
            return False

    def _show(self) -> None:
        now, of = time.monotonic(), self._size
        done = self._done + sum(self._read.values())
        self._pace.note(done, now)
        if not self._footer.shown:
            return
        words = [f"{self.counts.total():,}/{self.files:,} files", f"{100 * done / max(1, of):.1f} %"]
        words += [f"{self.counts[verdict]:,} {verdict}" for verdict in _BAD if self.counts[verdict]]
        if (left_s := self._pace.left_s(of - done)) is not None:
            words.append(f"{format_duration(left_s)} left")
            words.append(f"{self._pace.per_second / 1e6:,.1f} MB/s")
        self._footer.show(lambda width: "  ".join(words)[:width])

    def summary(self) -> Iterator[str]:
        """What was found, and what was not looked at."""
        away = Counter(str(each.state) for _, each in self.receipts.items() if not _is_looked_at(each))
        if left := self.files - self.counts.total():
            away["not reached"] = left
        found = [f"{self.counts['true']:,} true"]
        found += [f"{self.counts[verdict]:,} {verdict}" for verdict in _BAD if self.counts[verdict]]
        if self.counts["passed"]:
            found.append(f"{self.counts['passed']:,} changed meanwhile")
        files = self.counts.total()
        yield f"{files:,} file{'s' * (files != 1)}, {format_bytes(self._done)}: {', '.join(found)}"
        if away:
            states = ", ".join(
                f"{count:,} {state.replace('_', ' ')}" for state, count in sorted(away.items())
            )
            yield f"not looked at: {states}"
        if count := len([path for path, receipt in self.receipts.items() if receipt.state == "unproven"]):
            such = f"{count:,} file{'s' * (count != 1)}"
            yield f"note: {such} came without a length or a sum, unproven: nothing tells whether it is whole"
        if self.cached:
            yield "note: read through the page cache where the file system lets nothing past it"
        if self.disputed:
            yield f"asked the download watchdog to bring {self.disputed:,} again; it acts when it runs"
        elif (self.counts["wrong"] or self.counts["missing"]) and not self.dispute:
            yield "with --dispute the download watchdog brings them again"
