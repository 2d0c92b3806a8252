"""`stoker verify`: a line for each thing, 1 where one is wrong, 74 where one could not be read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from support.checkpoint_data import DEEP, seal, with_body
from support.parquet import flip_page, truncate, write_fineweb
from support.plan_data import write_set


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def flip(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_whole_parquet_is_proven_and_a_folder_stands_for_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deeper").mkdir()
    first, second = write_fineweb(tmp_path / "a.parquet"), write_fineweb(tmp_path / "deeper" / "b.parquet")
    assert exit_code(["verify", "parquet", str(tmp_path)]) == 0
    assert lines_of(capsys) == [f"{first}: proven", f"{second}: proven"]


def test_a_corrupt_page_is_found_with_its_row_group_and_the_others_still_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = flip_page(write_fineweb(tmp_path / "a.parquet"), 3)
    good = write_fineweb(tmp_path / "b.parquet")
    short = truncate(write_fineweb(tmp_path / "c.parquet"))
    assert exit_code(["verify", "parquet", str(tmp_path)]) == 1
    lines = lines_of(capsys)
    assert lines[0].startswith(f"{bad}: invalid: page_corrupt in row group 3, column text: ")
    assert lines[1] == f"{good}: proven"
    assert lines[2].startswith(f"{short}: invalid: ")


def test_a_name_does_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "\x1b[2Jgone\nx: proven\x9b.parquet").write_text("no parquet")
    assert exit_code(["verify", "parquet", str(tmp_path)]) == 1
    (line,) = lines_of(capsys)
    assert line.startswith(f"{tmp_path}/\\x1b[2Jgone\\nx: proven\\x9b.parquet: invalid: not_parquet")
    assert exit_code(["audit", str(tmp_path / "\x1b[2J.yaml")]) == 78
    assert "\\x1b[2J.yaml" in capsys.readouterr().err


def test_the_text_column_can_be_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_fineweb(tmp_path / "a.parquet")
    assert exit_code(["verify", "parquet", str(path), "--text-column", "body"]) == 1
    assert "body" in lines_of(capsys)[0]


def test_a_whole_checkpoint_is_proven_and_a_flipped_bit_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = tmp_path / "checkpoints"
    first, second = seal(checkpoints, 10), seal(checkpoints, 20)
    assert exit_code(["verify", "checkpoint", str(first)]) == 0
    assert lines_of(capsys)[0] == f"{first}: proven"
    flip(second / "optimizer-00001.safetensors", -1)
    assert exit_code(["verify", "checkpoint", str(tmp_path)]) == 1
    verdicts = [line for line in lines_of(capsys) if ": note: " not in line]
    assert verdicts[0] == f"{first}: proven"
    assert verdicts[1].startswith(f"{second}: invalid: ")
    assert "optimizer-00001.safetensors" in verdicts[1]


def test_a_mirror_stands_for_its_copies_whose_names_have_a_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = tmp_path / "main"
    made = [seal(mirror / f"t{timeline}", 10, timeline=timeline) for timeline in (0, 1)]
    marks = [hashlib.sha256((path / "checkpoint.json").read_bytes()).hexdigest()[:8] for path in made]
    first, second = (path.rename(f"{path}-{mark}") for path, mark in zip(made, marks, strict=True))
    assert exit_code(["verify", "checkpoint", str(mirror)]) == 0
    verdicts = [line for line in lines_of(capsys) if ": note: " not in line]
    assert verdicts == [f"{first}: proven", f"{second}: proven"]
    wrong = first.rename(first.with_name("step-000000010-00000000"))
    assert exit_code(["verify", "checkpoint", str(wrong)]) == 1
    assert "the directory's name ends in 00000000" in lines_of(capsys)[-1]


def test_what_no_list_names_is_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = seal(tmp_path / "checkpoints", 10)
    (path / "stray.bin").write_bytes(b"x")
    assert exit_code(["verify", "checkpoint", str(path)]) == 0
    assert f"{path}: note: stray.bin is in no list of this checkpoint, and was not opened" in lines_of(capsys)


def test_a_directory_without_anything_to_verify_is_a_usage_error(tmp_path: Path) -> None:
    for kind in ("parquet", "shards", "checkpoint"):
        assert exit_code(["verify", kind, str(tmp_path)]) == 64


def test_any_directory_above_shard_sets_stands_for_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "shards" / "prose", "k1", [[1, 2, 3, 4, 5, 6]])
    (tmp_path / ".stoker-owner.lock").touch()
    (tmp_path / ".building" / "half").mkdir(parents=True)
    (published,) = (tmp_path / "shards" / "prose").iterdir()
    for above in (published, tmp_path / "shards" / "prose", tmp_path / "shards", tmp_path):
        assert exit_code(["verify", "shards", str(above)]) == 1
        assert lines_of(capsys) == [f"{published}: invalid: SHA256SUMS: missing"]


def test_a_set_that_was_emptied_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emptied = tmp_path / "shards" / "90aa867ef55a7e73"
    emptied.mkdir(parents=True)
    assert exit_code(["verify", "shards", str(tmp_path)]) == 1
    assert lines_of(capsys)[0].startswith(f"{emptied}: invalid: ")


def test_a_set_without_its_manifest_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(tmp_path, "k1", [[1, 2, 3, 4, 5, 6]])
    (path,) = tmp_path.iterdir()
    (path / "manifest.json").unlink()
    assert exit_code(["verify", "shards", str(path)]) == 1
    assert lines_of(capsys)[0].startswith(f"{path}: invalid: ")


def test_what_is_nested_too_deep_is_a_finding_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = with_body(seal(tmp_path / "checkpoints", 10), DEEP)
    assert exit_code(["verify", "checkpoint", str(checkpoint)]) == 1
    assert f"{checkpoint}: invalid: checkpoint.json is not JSON: nested deeper than 64" in lines_of(capsys)[0]
    shards = tmp_path / "shards" / "90aa867ef55a7e73"
    shards.mkdir(parents=True)
    (shards / "manifest.json").write_bytes(DEEP)
    (shards / "SHA256SUMS").write_text(f"{hashlib.sha256(DEEP).hexdigest()}  manifest.json\n")
    # Where the file system lets nothing past its cache, what only its content tells convicts nothing.
    assert exit_code(["verify", "shards", str(shards)]) in (1, 74)
    assert "manifest.json: does not parse: ValueError('nested deeper than 64" in lines_of(capsys)[0]


def test_a_newer_format_is_unreadable_and_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (seal(tmp_path / "checkpoints", step) for step in (10, 20))
    body = (first / "checkpoint.json").read_bytes()
    with_body(first, body.replace(b'"v":1,', b'"v":2,'))
    assert exit_code(["verify", "checkpoint", str(tmp_path)]) == 78
    told = lines_of(capsys)
    assert told[0].startswith(f"{first}: unreadable: {first}/checkpoint.json is of format version 2, this")
    assert f"{second}: proven" in told
    (first / "checkpoint.json").write_bytes(body.replace(b'"v":1,', b'"v":3,'))  # but what rotted has rotted
    assert exit_code(["verify", "checkpoint", str(first)]) == 1
