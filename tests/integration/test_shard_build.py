"""Real build workers: killed, starved, raced and lied to; and a recount by none of the project's code."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from tokenizers import Tokenizer

from support.builds import (
    build_task,
    messages_of,
    run_to_end,
    set_bytes,
    small_source,
    small_tokenizer,
    start_worker,
)
from support.halting import halts_at, wait_halted
from support.text import damage_page, documents, write_parquet

BUILD = "stoker.shards.build.build_worker"
Build = Callable[[dict[str, Any]], dict[str, Any]]
ROWS = 600
MOST_OF_A_CHUNK = 24 << 20  # a quarter of it


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_source(tmp_path_factory.mktemp("source"), ROWS)


@pytest.fixture(scope="module")
def build() -> Iterator[Build]:
    """Has one worker, as long as nothing is done to it, make the set of a task, and tells its last word."""
    with worker_of_many() as process:
        yield lambda task: next(built_in_turn(process, [task]))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, source: Path, tokenizer: Path) -> dict[str, bytes]:
    """The set as built in peace, in one go."""
    task = build_task(tmp_path_factory.mktemp("reference"), source, tokenizer, read_rows=1000)
    assert run_to_end(BUILD, task)["status"] == "published"
    return set_bytes(Path(task["target"]))


def test_an_independent_recount_agrees(tmp_path: Path, source: Path, tokenizer: Path, build: Build) -> None:
    """pyarrow, tokenizers, xxhash and numpy alone."""
    task = build_task(tmp_path, source, tokenizer)
    books = build(task)["books"]
    definition = json.loads(tokenizer.read_text())
    definition["added_tokens"] = []
    del definition["model"]["vocab"]["<|endoftext|>"]
    encoder = Tokenizer.from_str(json.dumps(definition))
    streams: dict[str, list[list[int]]] = {"train": [], "val": []}
    rows: dict[str, list[int]] = {"train": [], "val": []}
    dropped = {"null": 0, "min_chars": 0}
    chars = 0
    for row, text in enumerate(pq.read_table(source)["text"].to_pylist()):
        if text is None or len(text) < 10:
            dropped["null" if text is None else "min_chars"] += 1
            continue
        chars += len(text)
        held_out = xxhash.xxh3_64_intdigest(text.encode(), task["build"]["val_salt"]) < int(0.1 * 2**64)
        streams["val" if held_out else "train"].append([*encoder.encode(text).ids, 0])
        rows["val" if held_out else "train"].append(row)
    assert books["rows"] == ROWS
    assert books["dropped"] == dropped
    assert books["chars"] == chars
    assert min(books["train"]["documents"], books["val"]["documents"]) > 30
    target = Path(task["target"])
    for split, found in streams.items():
        assert books[split] == {"documents": len(found), "tokens": sum(map(len, found))}
        bins = sorted(target.glob(f"{split}-*.bin"))
        tokens = np.concatenate([np.fromfile(path, "<u2") for path in bins])
        assert tokens.tolist() == [token for document in found for token in document]
        lengths = [np.diff(np.fromfile(path.with_suffix(".idx"), "<u8"), prepend=0) for path in bins]
        assert np.concatenate(lengths).tolist() == [len(document) for document in found]
        assert all(path.stat().st_size <= 20_000 * 2 for path in bins)
        numbers = [np.fromfile(path.with_suffix(".row"), "<u8") for path in bins]
        assert [len(one) for one in numbers] == [len(one) for one in lengths]
        assert np.concatenate(numbers).tolist() == rows[split]


def test_batch_size_commits_and_place_change_no_byte(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], build: Build
) -> None:
    for number, options in enumerate(
        (
            {"read_rows": 1, "every_s": 0.05},
            {"read_rows": 64, "commit_bytes": 1},
            {"read_rows": 100_000, "every_s": 0.0},
        )
    ):
        task = build_task(tmp_path / str(number), source, tokenizer, **options)  # type: ignore[arg-type]
        assert build(task)["status"] == "published"
        assert set_bytes(Path(task["target"])) == reference


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_workers_killed_again_and_again_still_make_the_same_set(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], seed: int
) -> None:
    rng = random.Random(seed)
    hit: list[str] = []
    rows: list[int] = []
    for attempt in range(40):
        task = build_task(
            tmp_path, source, tokenizer, read_rows=rng.choice([17, 50, 120]), every_s=0.0, commit_bytes=1
        )
        kill_after = rng.randint(3, 15) if attempt < 4 else 10**9
        halting = halts_at(tmp_path / "halts", [kill_after])
        if (result := _kill_after(task, kill_after, halting, hit, rows)) is not None:
            break
    else:
        raise AssertionError("never finished")
    assert result["status"] == "published"
    assert len(hit) >= 3
    assert rows == sorted(rows)  # what a commit has is never lost again
    assert set_bytes(Path(task["target"])) == reference


def _kill_after(
    task: dict[str, Any], count: int, halting: dict[str, str], hit: list[str], rows: list[int]
) -> dict[str, Any] | None:
    with start_worker(BUILD, task, env={**os.environ, **halting}) as process:
        for number, message in enumerate(messages_of(process), 1):
            if "done" in message:
                return dict(message["done"])
            assert "error" not in message, message
            if message["kind"] == "commit":
                rows.append(message["rows"])
            if number == count:
                wait_halted(process.pid)
                process.send_signal(signal.SIGKILL)
                hit.append(message.get("phase", message["kind"]))
                break
    return None


@pytest.mark.parametrize(
    "phase",
    [
        *("commit", "publish"),
        *(pytest.param(phase, marks=pytest.mark.long) for phase in ("open", "seal_hash", "seal_manifest")),
    ],
)
def test_a_kill_in_each_phase_is_survived(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], phase: str, build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer, every_s=0.0)
    with start_worker(BUILD, task, env={**os.environ, **halts_at(tmp_path / "halts", [phase])}) as process:
        for message in messages_of(process):
            if message.get("phase") == phase:
                wait_halted(process.pid)
                process.send_signal(signal.SIGKILL)
                break
    assert build(task)["status"] in ("published", "existed")
    assert set_bytes(Path(task["target"])) == reference
    assert list(Path(task["building"]).parent.iterdir()) == []


@pytest.mark.strace
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("rename", 3),
        pytest.param("fdatasync", 5, marks=pytest.mark.long),
        pytest.param("fsync", 9, marks=pytest.mark.long),
    ],
)
def test_a_kill_inside_a_system_call_is_survived(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    source: Path,
    tokenizer: Path,
    reference: dict[str, bytes],
    call: str,
    when: int,
    build: Build,
) -> None:
    task = build_task(tmp_path, source, tokenizer, every_s=0.0)
    tracer = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    inject = ["-e", f"inject={call}:signal=KILL:when={when}"]
    worker = [sys.executable, "-m", BUILD]
    killed = subprocess.run(
        [*tracer, *inject, *worker], input=json.dumps(task).encode() + b"\n", capture_output=True, check=False
    )
    assert killed.returncode != 0
    assert build(task)["status"] in ("published", "existed")
    assert set_bytes(Path(task["target"])) == reference


def test_a_stop_commits_what_it_has_and_the_next_worker_goes_on_there(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer, read_rows=20)
    with start_worker(BUILD, task, env={**os.environ, **halts_at(tmp_path / "halts", ["open"])}) as process:
        stream = messages_of(process)
        assert next(stream)["phase"] == "open"
        wait_halted(process.pid)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        rest = list(stream)
    assert process.returncode == 75
    assert rest[-1]["error"]["type"] == "WorkerStopped"
    assert any(message.get("kind") == "commit" for message in rest)
    last = build(task)
    first = last["told"][0]
    commit = [message for message in rest if message.get("kind") == "commit"][-1]
    assert (first["row_group"], first["row"]) == (commit["row_group"], commit["row"])
    assert last["status"] == "published"
    assert set_bytes(Path(task["target"])) == reference


def test_a_set_that_is_there_already_is_left_as_it_is(
    tmp_path: Path, source: Path, tokenizer: Path, build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer)
    first = build(task)
    inode = Path(task["target"]).stat().st_ino
    again = build(task)
    assert (first["status"], again["status"]) == ("published", "existed")
    assert (again["books"], again["manifest_sha256"]) == (first["books"], first["manifest_sha256"])
    assert Path(task["target"]).stat().st_ino == inode
    assert not Path(task["building"]).exists()


def test_a_wrong_set_at_the_target_is_told_and_not_touched(
    tmp_path: Path, source: Path, tokenizer: Path, build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer)
    build(task)
    flipped = Path(task["target"]) / "train-00001.bin"
    flipped.write_bytes(bytes(flipped.stat().st_size))
    result = build(task)
    assert result["status"] == "target_invalid"
    assert "train-00001.bin" in result["reason"]
    assert flipped.exists()


@pytest.mark.parametrize("told", [False, True], ids=["by sha256", "by what staging told"])
def test_a_parquet_that_changed_since_staging_drops_the_set(
    tmp_path: Path, source: Path, tokenizer: Path, build: Build, *, told: bool
) -> None:
    mine = Path(shutil.copy(source, tmp_path / "mine.parquet"))
    task = build_task(tmp_path, mine, tokenizer, every_s=0.0, read_rows=20)
    if told:
        task["source"]["xxh3"] = xxhash.xxh3_128_hexdigest(source.read_bytes())
        same = {**task, "building": str(tmp_path / "same"), "target": str(tmp_path / "published")}
        assert build(same)["status"] == "published"
    write_parquet(mine, documents(ROWS - 50, seed=1))
    assert build(task)["status"] == "changed"
    assert not Path(task["building"]).exists()
    assert not Path(task["target"]).exists()


def test_a_parquet_that_is_being_overwritten_is_changed_and_not_bad(
    tmp_path: Path, source: Path, tokenizer: Path, build: Build
) -> None:
    """It may be a link to a source that somebody writes in place: what is read then speaks of no content."""
    mine = Path(shutil.copy(source, tmp_path / "mine.parquet"))
    task = build_task(tmp_path, mine, tokenizer)
    damage_page(mine, 3)
    assert build(task)["status"] == "changed"
    assert not Path(task["building"]).exists()


def test_what_was_built_from_another_staging_of_the_file_is_not_gone_on_with(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], build: Build
) -> None:
    """A copy damaged on hot is half built when it is staged anew, whole: none of the damage may stay."""
    mine = Path(shutil.copy(source, tmp_path / "mine.parquet"))
    task = build_task(tmp_path, mine, tokenizer, every_s=0.0, read_rows=20)
    write_parquet(mine, documents(ROWS, seed=8))
    with start_worker(BUILD, task) as process:
        for message in messages_of(process):
            if message.get("kind") == "commit":
                process.send_signal(signal.SIGKILL)
                break
    mine.unlink()
    shutil.copy(source, mine)
    assert build(task)["status"] == "published"
    assert set_bytes(Path(task["target"])) == reference


def test_a_damaged_page_is_told_with_its_place_and_leaves_nothing(
    tmp_path: Path, source: Path, tokenizer: Path, build: Build
) -> None:
    mine = damage_page(Path(shutil.copy(source, tmp_path / "mine.parquet")), 4)
    task = build_task(tmp_path, mine, tokenizer, every_s=0.0)
    result = build(task)
    assert (result["status"], result["reason"]) == ("bad", "page_corrupt")
    assert (result["row_group"], result["column"]) == (4, "text")
    assert result["detail"]
    assert not Path(task["building"]).exists()


def test_a_file_without_one_of_the_columns_is_bad_with_the_reason(
    tmp_path: Path, source: Path, tokenizer: Path, build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer, filters={"at_least": {"score": 0.5}})
    result = build(task)
    assert (result["status"], result["reason"], result["column"]) == ("bad", "missing_column", "score")


def test_a_file_whose_rows_are_all_dropped_makes_an_empty_set_that_is_proven(
    tmp_path: Path, tokenizer: Path, build: Build
) -> None:
    mine = write_parquet(tmp_path / "mine.parquet", [None, "short", "", None])
    task = build_task(tmp_path, mine, tokenizer)
    result = build(task)
    assert result["books"]["documents"] == 0
    assert result["books"]["dropped"] == {"min_chars": 2, "null": 2}
    sizes = {path.name: path.stat().st_size for path in Path(task["target"]).glob("*-*")}
    kinds = ("bin", "idx", "row")
    assert sizes == {f"{split}-00000.{kind}": 0 for split in ("train", "val") for kind in kinds}
    proofs = run_to_end(
        "stoker.shards.format.proof_worker", {"sets": [{"path": task["target"], "key": task["key"]}]}
    )
    assert [proof["verdict"] for proof in proofs["proofs"]] == ["proven"]
    assert build(task)["status"] == "existed"


def test_an_empty_parquet_file_makes_an_empty_set(tmp_path: Path, tokenizer: Path, build: Build) -> None:
    mine = write_parquet(tmp_path / "mine.parquet", [])
    result = build(build_task(tmp_path, mine, tokenizer))
    assert (result["status"], result["books"]["rows"]) == ("published", 0)


def test_after_an_unexplained_death_every_row_group_is_committed(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer) | {"commit_every_row_group": True}
    commits = [message for message in build(task)["told"] if message.get("kind") == "commit"]
    assert [(commit["row_group"], commit["row"]) for commit in commits][:5] == [(n, 0) for n in range(1, 6)]
    assert set_bytes(Path(task["target"])) == reference


def test_two_workers_never_share_a_building_directory(tmp_path: Path, source: Path, tokenizer: Path) -> None:
    task = build_task(tmp_path, source, tokenizer)
    with start_worker(BUILD, task, env={**os.environ, **halts_at(tmp_path / "halts", ["open"])}) as first:
        stream = messages_of(first)
        next(stream)
        wait_halted(first.pid)
        with start_worker(BUILD, task) as second:
            last = list(messages_of(second))[-1]
        first.send_signal(signal.SIGCONT)
        assert second.returncode == 75
        assert last["error"]["type"] == "LockHeld"
        assert list(stream)[-1]["done"]["status"] == "published"


def test_a_full_disk_is_an_error_to_try_again_and_not_the_files_fault(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes], build: Build
) -> None:
    task = build_task(tmp_path, source, tokenizer, every_s=0.0)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    with start_worker(BUILD, task, preexec_fn=small_files) as process:
        last = list(messages_of(process))[-1]
    assert process.returncode == 74
    assert last["error"]["errno"] == errno.EFBIG
    assert build(task)["status"] == "published"
    assert set_bytes(Path(task["target"])) == reference


def test_a_task_whose_key_or_tokenizer_is_not_that_of_its_parameters_is_refused(
    tmp_path: Path, source: Path, tokenizer: Path
) -> None:
    other = tmp_path / "other.json"
    other.write_text(tokenizer.read_text().replace('"version"', ' "version"', 1))
    task = build_task(tmp_path, source, tokenizer)
    for change in ({"key": "0" * 64}, {"tokenizer_file": str(other)}):
        with start_worker(BUILD, {**task, **change}) as process:
            last = list(messages_of(process))[-1]
        assert (process.returncode, last["error"]["exit_code"]) == (65, 65)


def test_one_small_worker_builds_file_after_file_by_either_engine_and_the_fast_one_commits_at_once(
    tmp_path: Path, source: Path, tokenizer: Path, reference: dict[str, bytes]
) -> None:
    bad = damage_page(Path(shutil.copy(source, tmp_path / "bad.parquet")), 3)
    tasks = [
        build_task(tmp_path / str(number), file, tokenizer, read_rows=250) | {"engine": engine}
        for number, (file, engine) in enumerate(
            ((source, "fastokens"), (bad, "fastokens"), (source, "tokenizers"))
        )
    ]
    with worker_of_many() as process:
        said = list(built_in_turn(process, tasks))
        open_files = [str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
    assert [done["status"] for done in said] == ["published", "bad", "published"]
    assert not [name for name in open_files if str(tmp_path) in name or "source" in name]
    assert [set_bytes(Path(task["target"])) for task in tasks[::2]] == [reference, reference]
    commits = [message["rows"] for message in said[0]["told"] if message.get("kind") == "commit"]
    assert commits[0] == 100  # after the first batch, whatever the interval
    fast, plain = (json.loads((Path(task["target"]) / "build.json").read_text()) for task in tasks[::2])
    assert fast["engine"] == {"name": "fastokens", "refused": None, "version": version("fastokens")}
    assert plain["engine"]["name"] == "tokenizers"
    assert fast["max_rss_bytes"] < 200 << 20
    assert plain["max_rss_bytes"] < 230 << 20
    assert fast["source"] == tasks[0]["source"]["path"]


def test_a_row_group_of_any_size_takes_no_memory_of_its_own(
    tmp_path: Path, source: Path, tokenizer: Path
) -> None:
    """All rows are dropped, so that the reading alone is measured; its dictionary page is looked at, too."""
    letters = np.random.default_rng(1).integers(ord("a"), ord("z"), MOST_OF_A_CHUNK * 4, np.uint8).tobytes()
    pieces = [letters[at : at + 4000].decode() for at in range(0, len(letters), 4000)]
    table = pa.table({"text": pieces})
    large = tmp_path / "large.parquet"
    small_pages = {"dictionary_pagesize_limit": 1 << 16, "write_batch_size": 16}
    pq.write_table(table, large, row_group_size=10**9, compression="NONE", **small_pages)
    dropping = {"min_chars": 10**6}
    tasks = [
        build_task(tmp_path, file, tokenizer, filters=dropping, read_rows=250) for file in (source, large)
    ]
    with worker_of_many() as process:
        assert [done["status"] for done in built_in_turn(process, tasks)] == ["published", "published"]
        process.kill()
    notes = [json.loads((Path(task["target"]) / "build.json").read_text()) for task in tasks]
    assert notes[1]["max_rss_bytes"] - notes[0]["max_rss_bytes"] < MOST_OF_A_CHUNK


def worker_of_many() -> subprocess.Popen[bytes]:
    """A build worker that waits for its first task."""
    command = [sys.executable, "-m", BUILD]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def built_in_turn(process: subprocess.Popen[bytes], tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the worker says at the end of each task, before it is given the next, and told until then."""
    assert process.stdin is not None
    for task in tasks:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        told: list[dict[str, Any]] = []
        while not told or "done" not in told[-1]:
            told.append(next(messages_of(process)))
        yield {**told[-1]["done"], "told": told}


def test_the_tokenizer_worker_trains_on_the_first_bytes_whatever_the_files_are_cut_into(
    tmp_path: Path,
) -> None:
    texts = documents(600, seed=3)
    whole = write_parquet(tmp_path / "whole.parquet", texts)
    parts = [write_parquet(tmp_path / f"part{n}.parquet", texts[n * 200 : n * 200 + 200]) for n in range(3)]
    results = []
    for name, files in (("one", [whole]), ("three", parts)):
        task = {
            **training_files(*files),
            "text_column": "text",
            "vocab_size": 500,
            "train_bytes": 60_000,
            "target": str(tmp_path / "tokenizers" / f"{name}.json"),
        }
        with start_worker("stoker.shards.build.tokenizer_worker", task) as process:
            *told, last = messages_of(process)
        results.append(last["result"])
        percents = [message["percent"] for message in told if "percent" in message]
        assert (percents[0], percents[-1]) == (0, 100)
        assert percents == sorted(percents)
        assert hashlib.sha256(Path(task["target"]).read_bytes()).hexdigest() == results[-1]["sha256"]
    assert results[0]["sha256"] == results[1]["sha256"]
    assert (results[0]["vocab_size"] > 300, results[0]["eot"]) == (True, 0)
    assert results[1]["trained_on"] == [str(parts[0])]
    assert 60_000 <= results[0]["text_bytes"] < 62_000


def test_the_tokenizer_worker_names_a_bad_file_and_makes_nothing(tmp_path: Path, source: Path) -> None:
    bad = damage_page(write_parquet(tmp_path / "bad.parquet", documents(200)), 1)
    target = tmp_path / "tokenizer.json"
    task = {
        **training_files(bad, source), "text_column": "text", "vocab_size": 500, "train_bytes": 10**9,
        "target": str(target),
    }  # fmt: skip
    result = run_to_end("stoker.shards.build.tokenizer_worker", task)
    assert [(one["file"], one["reason"], one["row_group"]) for one in result["bad"]] == [
        (str(bad), "page_corrupt", 1)
    ]
    assert not target.exists()


@pytest.mark.parametrize("into", ["other text", "garbage"])
def test_the_tokenizer_worker_neither_trains_on_nor_convicts_what_is_not_what_was_staged(
    tmp_path: Path, source: Path, into: str
) -> None:
    mine = write_parquet(tmp_path / "mine.parquet", documents(200))
    target = tmp_path / "tokenizer.json"
    task = {
        **training_files(mine, source), "text_column": "text", "vocab_size": 500, "train_bytes": 10**9,
        "target": str(target),
    }  # fmt: skip
    write_parquet(mine, documents(200, seed=5))
    if into == "garbage":
        damage_page(mine, 1)
    assert run_to_end("stoker.shards.build.tokenizer_worker", task) == {"changed": [str(mine)]}
    assert not target.exists()


def training_files(*files: Path) -> dict[str, list[str]]:
    """The files to train on, as a task names them."""
    return {
        "files": [str(file) for file in files],
        "sha256": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files],
    }


def test_the_tokenizer_worker_takes_a_given_file_over_byte_for_byte(tmp_path: Path, tokenizer: Path) -> None:
    target = tmp_path / "deep" / "tokenizer.json"
    result = run_to_end(
        "stoker.shards.build.tokenizer_worker", {"file": str(tokenizer), "target": str(target)}
    )
    assert target.read_bytes() == tokenizer.read_bytes()
    assert result["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
