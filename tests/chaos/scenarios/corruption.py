"""Corrupted parquet: each file ends as exactly what its bytes decode to, or in quarantine; the rest goes on.

Each strike of the driver stands for a damaged file. Files are damaged before anybody saw them, after their
receipt was written, or while the daemons work. What a built set has to hold is told by plain pyarrow, which
decodes the very bytes that the source's record names (a row group with fewer rows than its footer says does
not decode, though Arrow says nothing); where nothing but the eye could tell damage, a flipped letter in a
page without checksum and compression, that is the damaged text.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from chaos.driver import Launch, Scenario
from chaos.job import Job
from chaos.scenarios.data import reference
from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source
from stoker.shards.format.reader import ShardSet
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.requests import pending_requests
from support.damage import Damage, apply, damaged, plan_damage, write_styled
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import RunningDaemon
from support.waiting import wait_until

AT_ONCE = 50  # damaged files in one pipeline
GOOD = 3
MIN_CHARS = 20
WAIT_S = 900.0


class CorruptionScenario(Scenario):
    """Parquet damaged in every place; a strike is a file, the table says what became of it."""

    name = "corruption"
    targets = ("a file",)
    longest_s = 1.0  # nothing is killed; the first moment drawn is what the damage is drawn from
    limit_s = WAIT_S

    def start(self, directory: Path) -> None:
        self.directory = directory
        self.ended: dict[int, str] = {}
        self.seed = 0

    def step(self, launch: Launch) -> Job:
        first = len(self.ended)
        count = min(AT_ONCE, self.kills - first)
        if launch._strike is None or launch._strike.number < first or not count:
            return FileJob([sys.executable, "-c", ""], self.ended, launch)
        home = self.directory / f"batch-{first}"
        self.seed = self.seed or int(launch._strike.delay_s * 1e9)
        figures = map(str, (self.seed, self.kills, first, count))
        command = [sys.executable, "-m", __name__, str(home), *figures]
        return FileJob(command, self.ended, launch, home)

    def check(self) -> None:
        assert len(self.ended) == self.kills


class FileJob(Job):
    """A batch at work, or what one of its files came to."""

    def __init__(
        self, command: list[str], ended: dict[int, str], launch: Launch, home: Path | None = None
    ) -> None:
        if home is not None:
            home.mkdir(parents=True)
        super().__init__(command, output=None if home is None else home / "said")
        self._ended, self._home, self._strike = ended, home, launch._strike

    def pid(self, target: str) -> int | None:
        """Nothing is killed here."""
        return None

    def reap(self, limit_s: float, orphans_s: float) -> int:
        """As any job; then the fates are known."""
        code = super().reap(limit_s, orphans_s)
        if self._home is not None:
            said = (self._home / "said").read_text(errors="replace")
            assert code == 0, f"{self._home}: {said[-3000:]}"
            told = json.loads((self._home / "fates.json").read_text())
            self._ended |= {int(number): fate for number, fate in told.items()}
        if self._strike is not None:
            self.instead = self._ended[self._strike.number]
        return code


class Batch:
    """One pipeline over some damaged files and a few good ones."""

    def __init__(self, home: Path, fates: list[Damage], seed: int) -> None:
        self.fates = {fate.name: fate for fate in fates}
        self.data = make_pipeline(home, dataset__filters={"min_chars": MIN_CHARS})
        self.contents: dict[str, dict[str, bytes]] = {}  # by path and sha256
        for number in range(GOOD):
            path = write_fineweb(self.data.source / f"000-good-{number}.parquet", 150, seed=number + 1)
            self._know(path.name, path.read_bytes())
        self.spoiled: dict[str, bytes] = {}
        for fate in fates:
            whole = write_styled(self.data.source / fate.name, fate.style, seed + fate.number)
            self.spoiled[fate.name] = damaged(whole, fate, seed)
            self._know(fate.name, whole)
            self._know(fate.name, self.spoiled[fate.name])

    def _know(self, name: str, content: bytes) -> None:
        self.contents.setdefault(name, {})[hashlib.sha256(content).hexdigest()] = content

    def strike(self, moment: str) -> None:
        """Damage the files whose moment has come."""
        for name, fate in self.fates.items():
            if fate.moment == moment:
                apply(self.data.source / name, self.spoiled[name], silent=fate.silent)

    def run(self) -> None:
        """Receipts, then both daemons at work until every file has come to its end; neither ever exits."""
        self.strike("before")
        assert self.data.once("download_watchdog", WAIT_S).returncode == 0
        self.strike("after")
        daemons = {name: self.data.start(name) for name in ("stage_shard", "download_watchdog")}
        try:
            wait_until(self.data.sources, WAIT_S, "the first record")
            self.strike("late")
            wait_until(lambda: self.is_over() or self.fallen(daemons), WAIT_S, "the end of every file")
            assert not self.fallen(daemons), self.fallen(daemons)
        finally:
            codes = [daemon.stop() for daemon in daemons.values()]
        assert codes == [0, 0], {name: daemon.said()[-2000:] for name, daemon in daemons.items()}

    @staticmethod
    def fallen(daemons: Mapping[str, RunningDaemon]) -> dict[str, str]:
        """The last words of daemons that ended."""
        return {
            name: daemon.said()[-2000:]
            for name, daemon in daemons.items()
            if daemon.process.poll() is not None
        }

    def is_over(self) -> bool:
        """Whether every file came to its end with the content that is there, if that could be noticed."""
        sources, receipts = self.data.sources(), self.data.receipts()
        if pending_requests(self.data.pipeline.layout, DOWNLOAD_WATCHDOG):
            return False
        for path in self.contents:
            if path not in sources or sources[path].state not in TERMINAL:
                return False
            fate = self.fates.get(path)
            unnoticed = fate is not None and fate.moment == "late" and fate.silent
            rotten, told = receipts[path].rotten, receipts[path].sha256
            if not (rotten or receipts[path].state == "verified") or sources[path].sha256 != told:
                return False
            if not (unnoticed or rotten) and told != _sha256((self.data.source / path).read_bytes()):
                return False
        return True

    def judge(self) -> dict[int, str]:
        """Assert what has to hold of every file, and say what became of each damaged one."""
        sources = self.data.sources()
        decoded = decode_all(self.data.home / "plain", self.contents)
        good = [source for source in sources.values() if source.path not in self.fates]
        built = [source for source in sources.values() if source.state in PUBLISHED]
        assert {source.path for source in good} <= {source.path for source in built}
        in_peace = reference(self.data, good)
        sets = self.data.sets()
        assert {name: sets[name] for name in in_peace} == in_peace, "a good file's set is another one"
        detokenize = Detokenizer(self.data)
        for source in built:
            plain = decoded[source.path][source.sha256]
            assert plain is not None, f"{source.path}: built, though plain pyarrow does not decode it"
            detokenize.check(source, plain)
        fates = {
            fate.number: self._fate(fate, sources[name], decoded[name]) for name, fate in self.fates.items()
        }
        self._check_audit()
        for daemon in ("stage_shard", "download_watchdog"):
            assert not self.data.events(daemon, "daemon_failed")
        return fates

    def _fate(self, fate: Damage, source: Source, decoded: Mapping[str, list[str | None] | None]) -> str:
        place = f"{fate.kind}, {'checksums' if fate.style.checksum else 'no checksums'}"
        before, after = (decoded[sha256] for sha256 in self.contents[fate.name])
        if source.state in PUBLISHED:
            seen = source.sha256 == _sha256(self.spoiled[fate.name])
            if seen and fate.kind == "text page":
                assert not fate.style.checksum, f"{fate}: its checksum does not hold"
            told = "as if whole" if before == after else "as it decodes"
            return f"{place}: built {told if seen else 'before it was damaged'}"
        assert source.state == "quarantined", f"{fate}: {source}"
        (reason,) = (
            each
            for each in map(json.loads, (file.read_text() for file in self._reasons()))
            if (each["path"], each["sha256"]) == (source.path, source.sha256)
        )
        assert reason["detail"], reason
        assert fate.silent or reason["reason"] != "source_rotten", f"{fate}: an edit is no rot"
        if reason["reason"] == "page_corrupt":
            assert reason["row_group"] is not None and reason["column"] == "text", reason
            assert after is None, f"{fate}: convicted of a page that decodes: {reason}"
        return f"{place}: quarantined, {reason['reason']}"

    def _reasons(self) -> list[Path]:
        return sorted(self.data.pipeline.layout.quarantine.glob("parquet-*/reason.json"))

    def _check_audit(self) -> None:
        code = "from stoker.cli.main import main; main()"
        command = [sys.executable, "-c", code, "audit", str(self.data.file), "--json", "--deep"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        findings = json.loads(ended.stdout)["findings"]
        rotten = [receipt.file for receipt in self.data.receipts().values() if receipt.rotten]
        assert [finding.split(": ")[:2] for finding in findings] == [[file, "rotten"] for file in rotten], (
            findings
        )


class Detokenizer:
    """Turns a set's tokens back into text, by the tokenizer's own library."""

    def __init__(self, data: DataPipeline) -> None:
        from tokenizers import Tokenizer

        self._data = data
        layout = data.pipeline.layout
        self._tokenizer = Tokenizer.from_file(str(layout.datasets / data.pin().tokenizer.file))

    def check(self, source: Source, plain: list[str | None]) -> None:
        """The set holds each text that passes the filters once, at its row, and the books say so."""
        wanted = {row: text for row, text in enumerate(plain) if text is not None and len(text) >= MIN_CHARS}
        kept = ShardSet(self._data.pipeline.hot_layout.shard_set("prose", str(source.key)))
        found: dict[int, str] = {}
        for split in ("train", "val"):
            rows = [int(row) for part in kept.rows(split) for row in part]
            ids = [document[:-1].tolist() for document in kept.documents(split)]
            texts = self._tokenizer.decode_batch(ids, skip_special_tokens=False)
            assert not found.keys() & set(rows)
            found |= dict(zip(rows, texts, strict=True))
        assert found == wanted, f"{source.path}: {_first_difference(found, wanted)}"
        assert source.books is not None
        assert source.books.rows == len(plain)
        assert dict(source.books.dropped or ()).get("null", 0) == plain.count(None)


def _first_difference(found: Mapping[int, str], wanted: Mapping[int, str]) -> str:
    rows = sorted(row for row in {*found, *wanted} if found.get(row) != wanted.get(row))
    return f"{len(rows)} rows differ, first {rows[:1]}: {[(found.get(r), wanted.get(r)) for r in rows[:1]]}"


Decoded = dict[str, dict[str, list[str | None] | None]]


def decode_all(directory: Path, contents: Mapping[str, Mapping[str, bytes]]) -> Decoded:
    """What plain pyarrow makes of each content, None where it cannot, or dies of it."""
    directory.mkdir()
    for versions in contents.values():
        for sha256, content in versions.items():
            (directory / sha256).write_bytes(content)
    subprocess.run([sys.executable, "-c", _PLAIN, str(directory)], check=True, stderr=subprocess.DEVNULL)

    def told(sha256: str) -> list[str | None] | None:
        file = directory / f"{sha256}.json"
        texts: list[str | None] | None = json.loads(file.read_text()) if file.exists() else None
        return texts

    return {path: {sha256: told(sha256) for sha256 in versions} for path, versions in contents.items()}


_PLAIN = """
import json, os, pathlib, sys
import pyarrow as pa, pyarrow.parquet as pq
pa.set_cpu_count(1)
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    child = os.fork()
    if child == 0:
        try:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            texts = []
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, ["text"], use_threads=False)
                table.validate(full=True)
                assert table.num_rows == file.metadata.row_group(group).num_rows  # Arrow may give fewer
                texts += table["text"].to_pylist()
            assert len(texts) == file.metadata.num_rows
            path.with_suffix(".tmp").write_text(json.dumps(texts))
            path.with_suffix(".tmp").rename(path.with_suffix(".json"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(arguments: list[str]) -> None:
    """One batch: the damaged files from `first` on, `count` of the `total` that the seed plans."""
    home = Path(arguments[0])
    seed, total, first, count = map(int, arguments[1:])
    batch = Batch(home, plan_damage(total, seed)[first : first + count], seed)
    batch.run()
    (home / "fates.json").write_text(json.dumps(batch.judge()))


if __name__ == "__main__":
    main(sys.argv[1:])
