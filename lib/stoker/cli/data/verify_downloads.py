"""`stoker verify downloads`: what receipts call verified is hashed again, past the page cache."""

from __future__ import annotations

import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from stoker.cli.ask_daemon import become_owner
from stoker.cli.options import one_line, pipeline_file, plural
from stoker.cli.worker_jobs import Job, tidy_on_term, work_off
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_duration
from stoker.corpus.fetch.landing import PARTS
from stoker.corpus.records.receipts import Receipt, read_receipts
from stoker.kit.terminal.live_lines import Footer
from stoker.kit.workers.parent import Worker, WorkerExit
from stoker.observe.rate import Rate
from stoker.store.errors import UnavailableError, UsageError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import RecordDamaged, read_record
from stoker.store.requests import file_request

EXIT_FINDING, EXIT_UNREADABLE = 1, 74
HASH_WORKER = "stoker.corpus.source.hash_worker"
_ROW = "{:<10}  {}  {}"
TRIES = 3  # for a file that changes while it is read
OVER_S = 30.0
BAD = ("wrong", "missing", "unreadable")  # verdicts beside `true`, and `passed` of a receipt that changed


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
            raise UsageError(f"{accept} was not found rotten; stoker audit {file} names the files that were")
        # Its set is then built as that of an edited file.
        file_request(layout, DOWNLOAD_WATCHDOG, "accept", {"path": accept, "sha256": receipt.found})
        click.echo(one_line(f"asked the download watchdog to take {accept} as it is; it acts when it runs"))
        return 0
    check = Check(pipeline, receipts, dispute=dispute)
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


def _is_looked_at(receipt: Receipt) -> bool:
    return receipt.usable or receipt.rotten


class Check:
    """One pass over the receipts; nothing is said of one that changes meanwhile, for its content may too."""

    def __init__(self, pipeline: Pipeline, receipts: Mapping[str, Receipt], *, dispute: bool) -> None:
        self.pipeline, self.receipts, self.dispute = pipeline, receipts, dispute
        self.counts: Counter[str] = Counter()
        self.cached = self.disputed = self._done = 0
        self._files = [receipt for _, receipt in receipts.items() if _is_looked_at(receipt)]
        self._size = sum(receipt.size for receipt in self._files)
        self._read: Counter[str] = Counter()  # bytes of the files in hand
        self._footer, self._pace = Footer(), Rate(OVER_S)

    def run(self) -> None:
        """Look at each, and hash what has the size that its receipt says."""
        if self._files:
            self._insist_on_the_disk()
        todo, tries = self._files, 1
        try:
            while todo:
                again = []
                jobs = self._jobs(todo)
                for job, ended in work_off(jobs, self.pipeline.download.files_at_once, warm=True):
                    del self._read[job.note.path]
                    result = ended.result or {}
                    if result.get("status") == "changed" and tries < TRIES:
                        again.append(job.note)
                    else:
                        self.cached += bool(result.get("cached"))
                        self._judged(job.note, *_verdict(job.note, ended))
                todo, tries = again, tries + 1
        finally:
            self._footer.clear()

    def _insist_on_the_disk(self) -> None:
        """An unmounted disk is no reason to call all its files missing, least of all to dispute them."""
        root = self.pipeline.source_root
        mark = root if self.pipeline.dataset.source.kind == "folder" else root / PARTS
        if not mark.is_dir():
            raise UnavailableError(f"{mark} is not there although files are receipted in it; mount the disk")

    def _jobs(self, todo: list[Receipt]) -> Iterator[Job]:
        root = self.pipeline.source_root
        for receipt in todo:
            path = Path(receipt.file)
            try:
                found = path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                self._judged(receipt, "missing")
                continue
            except OSError as error:
                self._judged(receipt, "unreadable", error.strerror or str(error))
                continue
            if path != root / receipt.path:
                self._judged(receipt, "missing", f"its receipt says {path}, which is not below {root}")
            elif not stat.S_ISREG(found.st_mode):
                self._judged(receipt, "wrong", "it is not a regular file")
            elif found.st_size != receipt.size:
                self._judged(receipt, "wrong", f"{found.st_size} bytes, its receipt says {receipt.size}")
            else:
                task = {"root": str(root), "path": receipt.path, "size": found.st_size}
                task |= {"mtime_ns": found.st_mtime_ns, "inode": found.st_ino}
                heard = partial(self._heard, receipt.path)
                yield Job(HASH_WORKER, task, self.pipeline.download.stall, receipt, heard)

    def _heard(self, path: str, _: Worker, message: Mapping[str, Any]) -> None:
        self._read[path] = int(message["bytes"])
        self._show()

    def _judged(self, receipt: Receipt, verdict: str, reason: str = "") -> None:
        if verdict == "missing":
            self._insist_on_the_disk()  # it may have gone meanwhile
        self._done += receipt.size
        if verdict != "true" and not self._stands(receipt):
            verdict = "passed"
        if verdict in BAD:
            self._footer.clear()
            if not any(self.counts[other] for other in BAD):
                click.echo(_ROW.format("verdict", "file", "why").rstrip())
            click.echo(one_line(_ROW.format(verdict, receipt.file, reason).rstrip()))
        self.counts[verdict] += 1
        no_more = verdict == "true" and receipt.rotten
        if self.dispute and (verdict in ("wrong", "missing") or no_more):
            # Filed at once: an interrupted look has said what it found.
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
        done = self._done + self._read.total()
        self._pace.note(done, time.monotonic())
        words = [f"{self.counts.total():,}/{len(self._files):,} files", *self._bad()]
        words.append(f"{100 * done / max(1, self._size):.1f} %")
        if (left_s := self._pace.left_s(self._size - done)) is not None:
            words += [f"{format_duration(left_s)} left", f"{self._pace.per_second / 1e6:,.1f} MB/s"]
        self._footer.show(lambda width: "  ".join(words)[:width])

    def _bad(self) -> list[str]:
        return [f"{self.counts[verdict]:,} {verdict}" for verdict in BAD if self.counts[verdict]]

    def summary(self) -> Iterator[str]:
        """What was found, and what was not looked at."""
        found = [f"{self.counts['true']:,} true", *self._bad()]
        if self.counts["passed"]:
            found.append(f"{self.counts['passed']:,} changed meanwhile")
        yield f"{plural(self.counts.total(), 'file')}, {format_bytes(self._done)}: {', '.join(found)}"
        away = Counter(str(one.state) for _, one in self.receipts.items() if not _is_looked_at(one))
        away["not reached"] = len(self._files) - self.counts.total()
        if states := [f"{n:,} {state.replace('_', ' ')}" for state, n in sorted(away.items()) if n]:
            yield f"not looked at: {', '.join(states)}"
        if count := sum(receipt.state == "unproven" for _, receipt in self.receipts.items()):
            such = f"{plural(count, 'file')} came without a length or a sum, unproven"
            yield f"note: {such}: nothing tells whether it is whole"
        if self.cached:
            yield "note: read through the page cache where the file system lets nothing past it"
        if self.disputed:
            yield f"asked the download watchdog to bring {self.disputed:,} again; it acts when it runs"
        elif self.counts["wrong"] or self.counts["missing"]:
            yield "with --dispute the download watchdog brings them again"


def _verdict(receipt: Receipt, ended: WorkerExit) -> tuple[str, str]:
    """What the end of a hash worker's task says of a file, with the reason."""
    result = ended.result
    if result is None:
        return "unreadable", ended.reason()
    if result["status"] == "missing":
        return "missing", ""
    if result["status"] == "changed":
        return "unreadable", "it changes while it is read"
    if result["sha256"] == receipt.sha256:
        return "true", ""
    note = " (through the page cache)" if result["cached"] else ""
    return "wrong", f"sha256 {result['sha256']}, its receipt says {receipt.sha256}{note}"
