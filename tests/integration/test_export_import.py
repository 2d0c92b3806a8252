"""Sets on their way out and tokens on their way in, with the real commands and the real `datasets`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import tokens_of
from stoker.kit.lock import Lock
from stoker.plan.growth import GrowthPolicy, PlanSource, decide
from stoker.plan.log import Plan, Segment
from stoker.plan.windows import WindowReader
from stoker.shards.format.proof import prove_set
from stoker.shards.format.reader import ShardSet
from stoker.store.layout import STAGE_SHARD
from support.audits import STOKER
from support.halting import halts_at, wait_halted
from support.imports import streams, write_predecessor, write_tokens
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline

TRUST = "--trust-tokenizer"


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> DataPipeline:
    """A pipeline whose two files are shard sets."""
    data = make_pipeline(tmp_path_factory.mktemp("first"))
    for number in range(2):
        write_fineweb(data.source / f"{number:03d}.parquet", 150, seed=number)
    data.drain()
    return data


@pytest.fixture(scope="module")
def other(drained: DataPipeline, tmp_path_factory: pytest.TempPathFactory) -> DataPipeline:
    """A pipeline with the first one's tokenizer and a file of its own, drained."""
    tokenizer = drained.pipeline.layout.tokenizer("prose", 1)
    data = make_pipeline(tmp_path_factory.mktemp("second"), tokenizer={"file": str(tokenizer)})
    write_fineweb(data.source / "own.parquet", 60, seed=9)
    data.drain()
    return data


@pytest.fixture
def data(other: DataPipeline, tmp_path: Path) -> DataPipeline:
    """The second pipeline, copied to be changed."""
    home = tmp_path / "home"
    shutil.copytree(other.home, home)
    body = other.file.read_text().replace(str(other.home), str(home))
    (home / other.file.name).write_text(body)
    return make_pipeline(home, tokenizer={"file": str(tokenizer_of(other))})


def tokenizer_of(data: DataPipeline) -> Path:
    return data.pipeline.layout.tokenizer("prose", 1)


@dataclass
class Ended:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def stoker(*arguments: object) -> Ended:
    """A command in this process: a start of Python costs more than what it does here."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code([str(one) for one in arguments])
    return Ended(code, out.getvalue(), err.getvalue())


def do(*arguments: object) -> str:
    """A command that has to go well; what it printed."""
    ended = stoker(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def audit_of(file: Path, *, deep: bool = False) -> dict[str, Any]:
    """What the audit says."""
    return dict(json.loads(stoker("audit", file, "--json", *(["--deep"] if deep else [])).stdout))


def sets_of(data: DataPipeline) -> list[tuple[str, str]]:
    """Key and manifest hash of the listing's sets, in order."""
    sources = data.sources()
    found = [sources[path] for path in data.pin().listing]
    return [(str(one.key), str(one.manifest_sha256)) for one in found]


def stream_of(data: DataPipeline, split: str, *keys: str) -> list[int]:
    """The tokens of these sets."""
    shards = data.pipeline.hot_layout.shards("prose")
    return [
        token
        for key in keys
        for part, _ in ShardSet(shards / key[:16]).shards(split)
        for token in part.tolist()
    ]


def windows(data: DataPipeline, pairs: list[tuple[str, str]]) -> list[list[int]]:
    """Every window of a plan entry of these sets, in the order of training."""
    shards, pin = data.pipeline.hot_layout.shards("prose"), data.pin()
    sources = {source.key: source for source in data.sources().values()}
    ready = [
        PlanSource.of(str(sources[key]), "proven", key, digest, tokens_of(sources[key].books, "train"))
        for key, digest in pairs
    ]
    policy = GrowthPolicy(seed=1, seq_len=32, segment_tokens=1_000_000_000)
    grown = decide(Plan((), "0" * 64), ready, complete=True, target=64, policy=policy, now=0.0)
    segment = next(entry for entry in grown.entries if isinstance(entry, Segment))
    with contextlib.closing(
        WindowReader(segment.sets, shards, seq_len=32, vocab_size=pin.tokenizer.vocab_size)
    ) as reader:
        from stoker.plan.permutation import permute

        order = permute(segment.key, segment.windows, np.arange(segment.windows))
        rows: list[list[int]] = reader.read(order).tolist()
        return rows


def test_what_is_exported_and_imported_elsewhere_gives_the_same_batches(
    drained: DataPipeline, data: DataPipeline, tmp_path: Path
) -> None:
    do("export", "--format", "nanogpt", drained.file, tmp_path / "gpt")
    assert "imported: " in do("import", data.file, tmp_path / "gpt")
    again = do("import", data.file, tmp_path / "gpt")
    assert "here already" in again
    source = data.sources()["import/gpt"]
    assert (source.state, source.imported) == ("proven", True)
    assert data.pin().listing == ("own.parquet", "import/gpt")
    mine, theirs = [(str(source.key), str(source.manifest_sha256))], sets_of(drained)
    assert windows(data, mine) == windows(drained, theirs)
    for split in ("train", "val"):
        assert stream_of(data, split, str(source.key)) == stream_of(
            drained, split, *(key for key, _ in theirs)
        )
    ended = data.once("stage_shard")
    assert ended.returncode == 0, ended.stderr
    assert "1 files built and 1 imported" in ended.stderr + ended.stdout
    assert data.pin().complete
    for deep in (False, True):
        report = audit_of(data.file, deep=deep)
        assert report["findings"] == []
        assert report["imported"]["sets"] == 1
        assert report["rows"] == report["documents"] + sum(report["dropped"].values()) == 60
    assert "rows not known" in do("status", data.file)
    asked = stoker("where", data.file, "import/gpt:0")
    assert (asked.returncode, "was imported" in asked.stderr) == (64, True)


def test_a_whole_pipeline_comes_back_from_load_from_disk(drained: DataPipeline, tmp_path: Path) -> None:
    from datasets import load_from_disk

    do("export", "--format", "hf-arrow", drained.file, tmp_path / "arrow")
    found = load_from_disk(str(tmp_path / "arrow"))
    keys = [key for key, _ in sets_of(drained)]
    for split in ("train", "val"):
        whole = stream_of(drained, split, *keys)
        rows = [token for row in found[split]["input_ids"] for token in row]
        assert rows == whole[: len(whole) - len(whole) % 32]  # train.seq_len
    assert found["train"].features["input_ids"].feature.dtype == "uint16"


def test_what_is_wrong_is_refused_and_what_is_not_known_is_said(data: DataPipeline, tmp_path: Path) -> None:
    """Given shards of the predecessor, and tokens of another vocabulary."""
    vocabulary = data.pin().tokenizer.vocab_size
    place = write_predecessor(
        tmp_path / "batch-7", {"train": [streams(where=None)], "val": [[1, 2, 3]]}, tokenizer="cd" * 32
    )
    wrong = write_tokens(tmp_path / "train.bin", [1, vocabulary])
    refused = stoker("import", data.file, place, wrong)
    assert refused.returncode == 65
    assert "--trust-tokenizer" in refused.stderr
    refused = stoker("import", data.file, wrong, TRUST)
    assert f"id {vocabulary}" in refused.stderr
    assert "import/batch-7" not in data.sources()
    told = json.loads(do("import", data.file, place, TRUST, "--json"))["imports"][0]
    assert told["books"]["documents"] is None
    assert data.pin().listing == ("own.parquet", "import/batch-7")
    report = audit_of(data.file)
    assert (report["findings"], report["imported"]["documents_not_known"]) == ([], 1)
    assert "documents not known of 1" in stoker("audit", data.file).stdout


def test_while_the_loop_runs_nothing_is_imported(data: DataPipeline, tmp_path: Path) -> None:
    place = write_tokens(tmp_path / "web" / "train.bin", streams()).parent
    with Lock.acquire(data.pipeline.layout.lock(STAGE_SHARD), purpose=STAGE_SHARD):
        refused = stoker("import", data.file, place, TRUST)
    assert refused.returncode == 75
    assert f"stage_shard (pid {os.getpid()}" in refused.stderr
    assert "stop the stage-shard loop, import, then start it again" in refused.stderr
    assert "import/web" not in data.sources()


@pytest.mark.parametrize("phase", ["copied", "claimed", "published"])
def test_killed_in_the_middle_and_started_again_an_import_ends_the_same(
    data: DataPipeline, tmp_path: Path, phase: str
) -> None:
    """Given a command that stands still at a phase of an import: kill -9 it there, and import once more."""
    place = write_tokens(tmp_path / "web" / "train.bin", streams()).parent
    environ = {**os.environ, **halts_at(tmp_path / "halts", [phase])}
    with subprocess.Popen([STOKER, "import", str(data.file), str(place), TRUST], env=environ) as command:
        wait_halted(command.pid)
        command.kill()
    state = "none" if phase == "copied" else data.sources()["import/web"].state
    assert state == ("none" if phase == "copied" else "seen"), "on record before a set has its name"
    made = [path.name for path in data.pipeline.hot_layout.shards("prose").iterdir()]
    assert len(made) == (2 if phase == "published" else 1)
    assert ("here already" if phase == "published" else "imported: ") in do("import", data.file, place, TRUST)
    source = data.sources()["import/web"]
    found = data.pipeline.hot_layout.shard_set("prose", str(source.key))
    assert (source.state, prove_set(found, key=source.key).verdict) == ("proven", "proven")
    assert stream_of(data, "train", str(source.key)) == streams()
    ended = data.once("stage_shard")
    assert ended.returncode == 0, ended.stderr
    assert not list(data.pipeline.hot_layout.building.glob("import-*"))
    assert data.pin().complete
    assert audit_of(data.file)["findings"] == []


def test_an_import_that_is_lost_is_said_passed_over_and_comes_back(
    data: DataPipeline, tmp_path: Path
) -> None:
    place = write_tokens(tmp_path / "web" / "train.bin", streams()).parent
    do("import", data.file, place, TRUST)
    source = data.sources()["import/web"]
    shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", str(source.key)))
    assert data.once("stage_shard").returncode == 0
    lost = data.sources()["import/web"]
    assert (lost.state, lost.imported) == ("quarantined", True)
    assert "import it again" in str(lost.reason)
    assert data.events("stage_shard", "import_lost")
    assert data.pin().listing == ("own.parquet", "import/web")  # a plan may name it
    do("import", data.file, place, TRUST)
    assert data.sources()["import/web"].key == source.key
    assert data.once("stage_shard").returncode == 0
    assert audit_of(data.file)["findings"] == []


def test_an_imported_set_is_copied_to_warm_as_any_other(data: DataPipeline, tmp_path: Path) -> None:
    tokenizer = data.pipeline.tokenizer.file
    data = make_pipeline(data.home, tokenizer={"file": str(tokenizer)}, warm=str(tmp_path / "warm"))
    place = write_tokens(tmp_path / "web" / "train.bin", streams()).parent
    do("import", data.file, place, TRUST)
    assert data.once("stage_shard").returncode == 0
    source = data.sources()["import/web"]
    assert (source.state, source.on_warm) == ("synced", True)
    shutil.rmtree(data.pipeline.hot_layout.shard_set("prose", str(source.key)))
    assert data.once("stage_shard").returncode == 0
    assert data.sources()["import/web"].evicted  # it is on warm only, which is no loss
    do("export", "--format", "nanogpt", data.file, tmp_path / "out")
    assert audit_of(data.file)["findings"] == []


def test_without_a_pipeline_that_ever_ran_there_is_nothing_to_import_into(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path / "home")
    place = write_tokens(tmp_path / "web" / "train.bin", [1, 2]).parent
    assert stoker("import", data.file, place, TRUST).returncode == 64
    assert data.once("stage_shard").returncode == 0  # nothing there: no tokenizer either
    refused = stoker("import", data.file, place, TRUST)
    assert refused.returncode == 69
    assert "no frozen tokenizer" in refused.stderr
    assert stoker("import", data.file, tmp_path / "nowhere").returncode == 64
