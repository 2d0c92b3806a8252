"""Exports: what other trainers read is token for token what the shard sets hold, or nothing is there."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stoker.cli.main import exit_code
from stoker.exchange import export_formats, export_sets
from stoker.shards.build.build_worker import main as build
from stoker.shards.format.identity import set_key
from stoker.shards.format.manifest import SUMS, DataFile, Manifest, sums_text
from stoker.shards.format.reader import ShardSet
from stoker.store.direct import hash_file
from support.audits import run_measured
from support.books import books_of
from support.builds import Recorder, build_task, small_source, small_tokenizer

SOURCES = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shard sets of two sources, each of several files."""
    home = tmp_path_factory.mktemp("made")
    tokenizer = small_tokenizer(home / "tokenizer.json")
    for seed in range(SOURCES):
        task = build_task(home, small_source(home, 300, seed), tokenizer, shard_tokens=9000)
        assert build(task, Recorder())["status"] == "published"
    return home / "hot" / "shards" / "prose"


@pytest.fixture
def sets(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "sets"))


def stream(sets: Path, split: str) -> list[int]:
    """A split's tokens, set after set by name."""
    found = [ShardSet(one) for one in sorted(sets.iterdir())]
    return [token for one in found for tokens, _ in one.shards(split) for token in tokens.tolist()]


def load(path: Path) -> Any:
    """What the real `datasets` makes of it."""
    from datasets import load_from_disk

    return load_from_disk(str(path))


def export(form: str, sets: Path, out: Path, *options: str) -> int:
    return exit_code(["data", "export", "--format", form, *options, str(sets), str(out)])


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_nanogpt_files_hold_the_whole_streams(made: Path, tmp_path: Path) -> None:
    assert export("nanogpt", made, tmp_path / "out") == 0
    for split in ("train", "val"):
        found = np.memmap(tmp_path / "out" / f"{split}.bin", dtype=np.uint16, mode="r")
        assert found.tolist() == stream(made, split)
    note = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert note["files"]["val.bin"]["tokens"] == len(stream(made, "val"))
    assert note["files"]["train.bin"]["sha256"] == hash_file(tmp_path / "out" / "train.bin").sha256
    assert len(note["sets"]) == SOURCES


def test_rows_come_back_from_load_from_disk_and_the_tail_is_told(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export_sets, "PIECE_TOKENS", 1000)  # pieces end within rows, and rows within pieces
    monkeypatch.setattr(export_formats, "FILE_TOKENS", 5000)
    assert export("hf-arrow", made, tmp_path / "out", "--rows", "96") == 0
    tail = len(stream(made, "train")) % 96
    assert f"{tail:,} train" in capsys.readouterr().out
    found = load(tmp_path / "out")
    assert list(found) == ["train", "val"]
    for split in found:
        whole = stream(made, split)
        rows = [token for row in found[split]["input_ids"] for token in row]
        assert rows == whole[: len(whole) - len(whole) % 96]
    assert found["train"].features["input_ids"].length == 96
    assert len(list((tmp_path / "out" / "train").glob("*.arrow"))) > 1


def test_no_column_has_offsets_or_more_values_than_a_batch(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given pieces of 500 tokens, no batch holds many more: at 2**31 values all is the same."""
    monkeypatch.setattr(export_sets, "PIECE_TOKENS", 500)
    assert export("hf-arrow", made, tmp_path / "out", "--rows", "64", "--split", "train") == 0
    with pa.memory_map(str(tmp_path / "out" / "data-00000.arrow")) as file:
        batches = list(pa.ipc.open_stream(file))
    assert len(batches) > 20
    for batch in batches:
        assert len(batch.column(0).flatten()) < 2 * 500
        assert pa.types.is_fixed_size_list(batch.column(0).type)


def test_the_same_export_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert export("hf-arrow", made, tmp_path / name, "--rows", "100") == 0
    first, second = (
        {file.relative_to(tmp_path / name): file.read_bytes() for file in (tmp_path / name).rglob("*.*")}
        for name in ("a", "b")
    )
    assert first == second


def test_ids_of_four_bytes_are_exported_as_such_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.arange(70_000, dtype="<u4")
    write_large_set(tmp_path / "sets", [ids], vocab_size=70_000)
    assert export("nanogpt", tmp_path / "sets", tmp_path / "out") == 0
    assert "uint32" in capsys.readouterr().out
    assert np.fromfile(tmp_path / "out" / "train.bin", "<u4").tolist() == ids.tolist()
    assert not (tmp_path / "out" / "val.bin").exists()  # it would be empty, which cannot be mapped
    assert export("hf-arrow", tmp_path / "sets", tmp_path / "arrow", "--rows", "7") == 0
    found = load(tmp_path / "arrow")
    assert found["train"][9999]["input_ids"] == ids[-7:].tolist()
    assert len(found["val"]) == 0


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("nanogpt", "train-00000.bin"),
        ("nanogpt", "val-00000.bin"),
        ("hf-arrow", "train-00001.bin"),
        ("hf-arrow", "val-00000.bin"),
    ],
)
def test_a_wrong_set_is_refused_by_name_and_nothing_is_left(
    sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, form: str
) -> None:
    spoiled = sorted(sets.iterdir())[-1] / name
    data = bytearray(spoiled.read_bytes())
    data[len(data) // 2] ^= 1
    spoiled.write_bytes(data)
    assert export(form, sets, tmp_path / "out") == 65
    said = capsys.readouterr().err
    assert str(spoiled.parent) in said
    assert name in said
    assert left_in(tmp_path) == ["sets"]


@pytest.mark.parametrize("spoil", ["truncated", "missing", "manifest", "sums", "torn sums"])
def test_what_is_not_whole_is_refused(
    sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: str
) -> None:
    one = sorted(sets.iterdir())[0]
    match spoil:
        case "truncated":
            data = (one / "train-00000.bin").read_bytes()
            (one / "train-00000.bin").write_bytes(data[:-2])
        case "missing":
            (one / "train-00001.bin").unlink()
        case "manifest":
            (one / "manifest.json").unlink()
        case "sums":  # another hash of a file, by itself well formed
            text = (one / SUMS).read_text()
            (one / SUMS).write_text(("0" if text[0] != "0" else "1") + text[1:])
        case "torn sums":
            (one / SUMS).write_bytes((one / SUMS).read_bytes()[1:])
    assert export("nanogpt", sets, tmp_path / "out") == 65
    assert one.name in capsys.readouterr().err
    assert left_in(tmp_path) == ["sets"]


def test_two_builds_or_the_same_set_twice_do_not_go_into_one_export(
    made: Path, sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sorted(made.iterdir())[0], sets / "again" / sorted(made.iterdir())[0].name)
    assert export("nanogpt", sets, tmp_path / "out") == 65
    assert "the same shard set" in capsys.readouterr().err
    write_large_set(tmp_path / "mixed", [np.zeros(10, "<u2")])
    shutil.copytree(made, tmp_path / "mixed" / "real")
    assert export("nanogpt", tmp_path / "mixed", tmp_path / "out") == 65
    assert "tokenizer" in capsys.readouterr().err


def test_what_stands_at_the_target_is_left_alone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert export("nanogpt", made, tmp_path / "out") == 64
    assert "exists" in capsys.readouterr().err
    assert left_in(tmp_path) == ["out"]
    assert export("nanogpt", tmp_path / "out", tmp_path / "new") == 64  # no set in it
    assert export("nanogpt", made, tmp_path / "nowhere" / "out") == 64
    assert export("nanogpt", made, tmp_path / "new", "--rows", "3") == 64
    assert left_in(tmp_path) == ["out"]


def test_an_export_that_was_killed_leaves_no_target_and_the_next_one_clears_up(
    made: Path, tmp_path: Path
) -> None:
    (tmp_path / ".tmp-out").mkdir()
    (tmp_path / ".tmp-out" / "train.bin").write_bytes(b"half")
    assert export("nanogpt", made, tmp_path / "out") == 0
    assert left_in(tmp_path) == ["out"]


def test_a_disk_that_takes_no_more_leaves_nothing_half(made: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same error from the same call."""
    ended = run_export("nanogpt", made, tmp_path / "out", limits={resource.RLIMIT_FSIZE: 8192})
    assert ended.returncode == 74, ended.stderr
    assert "cannot write" in ended.stderr
    assert left_in(tmp_path) == []


def test_memory_does_not_grow_with_what_is_exported(tmp_path: Path) -> None:
    """Given 64 MiB of tokens in a set, each form peaks below its imports and half of them."""
    shard = np.arange(16 << 20, dtype="<u4").astype("<u2")
    write_large_set(tmp_path / "sets", [shard] * 2, vocab_size=65_536)
    for form, most, options in (("nanogpt", 110, []), ("hf-arrow", 150, ["--rows", "2049"])):
        out = tmp_path / f"{form}{len(options)}"
        ended = run_export(form, tmp_path / "sets", out, *options)
        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout.split()[-1]) < most << 20
        shutil.rmtree(out)


def run_export(
    form: str, sets: Path, out: Path, *options: str, limits: dict[int, int] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_measured("data", "export", "--format", form, *options, sets, out, limits=limits)


def write_large_set(root: Path, shards: list[np.ndarray[Any, Any]], vocab_size: int = 600) -> None:
    """A whole set of these train shards, one document to each 4,096 tokens."""
    key = set_key("ab" * 32, "cd" * 32)
    directory = root / key[:16]
    directory.mkdir(parents=True)
    files: dict[str, DataFile] = {}
    documents = 0
    for split, parts in (("train", shards), ("val", [shards[0][:0]])):
        for number, part in enumerate(parts):
            ends = np.append(np.arange(4096, part.size, 4096), part.size)[: part.size].astype("<u8")
            part[ends.astype(np.int64) - 1] = 0  # the end of text
            for kind, data in (("bin", part), ("idx", ends), ("row", np.arange(ends.size, dtype="<u8"))):
                path = directory / f"{split}-{number:05d}.{kind}"
                data.tofile(path)
                if kind == "row":  # they rise over the whole split
                    (data + documents).tofile(path)
                told = (part.size, ends.size) if kind == "bin" else (None, None)
                files[path.name] = DataFile(path.stat().st_size, hash_file(path).sha256, *told)
            documents += ends.size
    books = books_of(sum(map(len, shards)), documents=documents, rows=documents)
    dtype = "uint16" if vocab_size <= 65_536 else "uint32"
    manifest = Manifest("prose", key, "cd" * 32, 1, "ab" * 32, "ef" * 32, vocab_size, 0, dtype, books, files)
    (directory / "manifest.json").write_bytes(manifest.to_bytes())
    hashes = {name: file.sha256 for name, file in files.items()} | {"manifest.json": manifest.sha256}
    (directory / SUMS).write_bytes(sums_text(hashes))
    Manifest.parse(manifest.to_bytes())
