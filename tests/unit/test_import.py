"""`stoker import`: tokens of others become documents in parquet, a row each, or nothing is there."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from stoker.cli.main import exit_code
from stoker.exchange import to_parquet, token_files, token_stream
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.direct import hash_file
from support.audits import STOKER, run_measured
from support.builds import small_tokenizer
from support.halting import halts_at, wait_halted
from support.imports import EOT, streams, write_predecessor, write_tokens, write_with_header

Make = Callable[[Path], object]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json whose end-of-text is id 0."""
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, record batches, row groups and files end anywhere."""
    monkeypatch.setattr("datasets.config.DEFAULT_MAX_BATCH_SIZE", 10)
    monkeypatch.setattr(token_files, "PIECE_TOKENS", 77)
    monkeypatch.setattr(to_parquet, "GROUP_TOKENS", 200)
    monkeypatch.setattr(to_parquet, "FILE_TOKENS", 700)


def do(tokenizer: Path, out: Path, *arguments: object) -> int:
    return exit_code(["data", "import", *map(str, arguments), str(out), "--tokenizer", str(tokenizer)])


def rows(out: Path) -> list[list[int]]:
    """The documents in the order in which a pipeline reads them."""
    return [row for file in sorted(out.iterdir()) for row in pq.read_table(file)["tokens"].to_pylist()]


def documents(ids: Sequence[int]) -> list[list[int]]:
    """The documents of a stream, told apart the plain way."""
    ends = [0, *(number + 1 for number, token in enumerate(ids) if token == EOT)]
    return [list(ids[first:end]) for first, end in pairwise(ends)]


def save(
    place: Path, ids: Sequence[Any], *, column: str = "input_ids", length: int = -1, dtype: str = "int32"
) -> Path:
    """What `datasets.save_to_disk` writes of these rows."""
    from datasets import Dataset, Features, Value
    from datasets import Sequence as Lists

    features = Features({column: Lists(Value(dtype), length=length), "text": Value("string")})
    rows = Dataset.from_dict({column: list(ids), "text": ["x"] * len(ids)}, features=features)
    rows.save_to_disk(str(place))
    return place


STREAM = streams()
PADDED = [*STREAM, *[EOT] * (-len(STREAM) % 31)]  # whole rows of 31
FORMS: dict[str, Make] = {
    "raw": lambda home: write_tokens(home / "train.bin", STREAM),
    "before each": lambda home: write_tokens(home / "train.bin", [EOT, *STREAM[:-1]]),
    "cut off": lambda home: write_tokens(home / "train.bin", STREAM[:-1]),
    "header": lambda home: (
        write_with_header(home / "fineweb_train_000001.bin", STREAM[:250]),
        write_with_header(home / "fineweb_train_000002.bin", STREAM[250:], magic=20240801, version=7),
    ),
    "predecessor": lambda home: write_predecessor(home, {"train": [STREAM[:99], STREAM[99:]]}, dtype="<u4"),
    "lists": lambda home: save(home, documents(STREAM)),
    "lists, before each": lambda home: save(
        home, [[EOT, *row[:-1]] for row in documents(STREAM)], dtype="int64"
    ),
    "fixed size": lambda home: save(
        home, [PADDED[at : at + 31] for at in range(0, len(PADDED), 31)], length=31, dtype="uint16"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_the_tokens_come_in_a_row_is_a_document(form: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    FORMS[form](tmp_path / "in")
    assert do(tokenizer, tmp_path / "out", tmp_path / "in") == 0
    found = rows(tmp_path / "out")
    assert found == documents(PADDED if form == "fixed size" else STREAM)
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["tokens-00000.parquet", "tokens-00001.parquet"]
    assert pq.read_metadata(files[0]).num_row_groups > 1
    schema = pq.read_schema(files[0])
    assert schema.field("tokens").type == pa.list_(pa.uint16())
    assert schema.metadata[b"stoker.tokenizer_sha256"] == load_tokenizer(tokenizer).sha256.encode()


def test_the_end_says_what_the_pipelines_file_needs(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b", "a"):  # the order is the operator's
        write_tokens(tmp_path / name / "train.bin", [5, 6 if name == "a" else 7])
        write_tokens(tmp_path / name / "val.bin", [9, EOT])
    places = tmp_path / "b", tmp_path / "a"
    assert do(tokenizer, tmp_path / "out", *places, "--document-tokens", 9) == 0
    said = capsys.readouterr().out
    assert "1 file, 2 documents, 6 tokens (2 end-of-text added)" in said
    assert f"{tmp_path / 'a' / 'val.bin'}: passed over by --split train" in said
    assert yaml.safe_load(said.partition("Put into the pipeline's file:\n")[2]) == {
        "dataset": {
            "source": {"kind": "folder", "path": str(tmp_path / "out")},
            "tokens_column": "tokens",
        },
        "tokenizer": {"file": str(tokenizer)},
    }
    assert rows(tmp_path / "out") == [[5, 7, EOT], [5, 6, EOT]]
    assert do(tokenizer, tmp_path / "all", *places, "--split", "val", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["documents"], told["pipeline"]["dataset.tokens_column"]) == (2, "tokens")
    assert rows(tmp_path / "all") == [[9, EOT]] * 2


def test_of_a_dict_of_datasets_the_split_is_taken(tokenizer: Path, tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        save(tmp_path / "in" / split, [[number + 1, EOT]])
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    for split, expected in (("train", [1]), ("val", [2]), ("all", [1, 2, 3])):
        assert do(tokenizer, tmp_path / split, tmp_path / "in", "--split", split) == 0
        assert rows(tmp_path / split) == [[number, EOT] for number in expected]


@pytest.mark.parametrize("length", [1, 40, 77, 78, 10_000])
def test_text_without_an_end_is_cut_only_where_that_is_asked_for(
    length: int, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given shards of the predecessor, which wrote no end-of-text, with one in them all the same."""
    ids = [*streams(where=None), EOT, *range(1, 200)]
    place = write_predecessor(tmp_path / "in", {"train": [ids[:99], ids[99:]]})
    expected = [
        [*text[at : at + length], EOT]
        for text in (ids[: ids.index(EOT)], ids[ids.index(EOT) + 1 :])
        for at in range(0, len(text), length)
    ]
    assert do(tokenizer, tmp_path / "out", place, "--document-tokens", length) == 0
    assert rows(tmp_path / "out") == expected
    write_predecessor(place, {"train": [ids[:99], ids[99:300]]})
    assert do(tokenizer, tmp_path / "again", place) == 65
    said = capsys.readouterr().err
    assert f"{place / 'train_000000.bin'}: token 0 begins a text of 300 tokens without end-of-text" in said
    assert "--document-tokens" in said


def test_a_document_that_never_ends_is_refused_where_it_begins(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token_stream, "MOST_TOKENS", 500)
    write_tokens(tmp_path / "in" / "train_1.bin", [*[5] * 100, EOT, *[6] * 100])
    write_tokens(tmp_path / "in" / "train_2.bin", [7] * 500)
    assert do(tokenizer, tmp_path / "out", tmp_path / "in") == 65
    assert f"{tmp_path / 'in' / 'train_1.bin'}: token 101 begins a text" in capsys.readouterr().err


def arrow(place: Path) -> Path:
    return next(place.glob("*.arrow"))


def change(path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path.write_bytes(spoil(path.read_bytes()))


FIRST = "train_000000.bin"


def shards(home: Path, ids: list[int], **changes: Any) -> Path:
    return write_predecessor(home, {"train": [ids]}, **changes)


def told(*names: str) -> dict[str, Any]:
    """What a manifest of the predecessor says of shards of one token."""
    return {"total_tokens": len(names), "shards": [{"path": name, "tokens": 1} for name in names]}


def state(home: Path, **body: Any) -> None:
    (home / "state.json").write_text(json.dumps(body))


REFUSALS: dict[str, tuple[Make, str]] = {
    "odd size": (lambda home: (home / "train.bin").write_bytes(b"\1\0\2"), "3 bytes are no whole number"),
    "beyond the vocabulary": (
        lambda home: write_tokens(home / "train.bin", [*STREAM, 600, EOT]),
        f"train.bin: token {len(STREAM)}: id 600",
    ),
    "no tokens": (lambda home: write_tokens(home / "train.bin", []), "no tokens"),
    "only another split": (
        lambda home: write_tokens(home / "val.bin", [1, EOT]),
        "no tokens of --split train",
    ),
    "nothing": (lambda home: (home / "x.txt").touch(), "or .bin file"),
    "torn header": (
        lambda home: change(write_with_header(home / "train.bin", [1, 2, 3]), lambda data: data[:-2]),
        "header says 3 tokens",
    ),
    "unknown header": (lambda home: write_with_header(home / "train.bin", [1], version=9), "version 9"),
    "short shard": (
        lambda home: (shards(home, [1, 2, 3]), os.truncate(home / FIRST, 4)),
        "4 bytes cannot hold the 3",
    ),
    "missing shard": (lambda home: (shards(home, [1]), (home / FIRST).unlink()), f"{FIRST}: missing"),
    "wrong total": (
        lambda home: shards(home, [1], val={"total_tokens": 7, "shards": []}),
        "total_tokens is 7",
    ),
    "a shard twice": (lambda home: shards(home, [1], train=told(FIRST, FIRST)), "twice"),
    "another name": (lambda home: shards(home, [1], train=told("../x/../secret.bin")), "no name of a shard"),
    "no manifest": (lambda home: (home / "manifest.json").write_text("[1]"), "no object"),
    "torn manifest": (lambda home: (home / "manifest.json").write_text('{"train":'), "does not parse"),
    "odd manifest": (lambda home: (home / "manifest.json").write_text('{"train": 3}'), "not a manifest"),
    "another tokenizer": (lambda home: shards(home, [1], tokenizer="cd" * 32), "--trust-tokenizer"),
    "a link": (
        lambda home: (home / "train.bin").symlink_to(write_tokens(home.parent / "elsewhere.bin", [1])),
        "symbolic link",
    ),
    "a directory": (lambda home: (home / "train.bin").mkdir(), "no regular file"),
    "our own set": (lambda home: (home / "SHA256SUMS").touch(), "stoker data export"),
    "a row without an end": (
        lambda home: save(home, [*documents(STREAM), [4, 5], *documents(STREAM)]),
        ".arrow: row 40 does not end with end-of-text (id 0)",
    ),
    "a row that begins without": (
        lambda home: save(home, [[EOT, 5], [EOT, 6], [EOT, 7], [8, EOT]]),
        ".arrow: row 3 does not begin with end-of-text",
    ),
    "an empty row": (lambda home: save(home, [[5, EOT], [], [6, EOT]]), ".arrow: row 1 does not end"),
    "a null": (lambda home: save(home, [[5, EOT], None]), ".arrow: row 1 is null"),
    "a null in a row": (lambda home: save(home, [[5, EOT], [6, None, EOT]]), ".arrow: row 1 holds a null"),
    "fixed size without any end": (
        lambda home: save(home, [[1, 2], [3, 4]], length=2),
        ".arrow: row 0 begins a text of 4 tokens without end-of-text",
    ),
    "a row beyond the vocabulary": (
        lambda home: save(home, [[5, EOT], [6, 600, EOT]]),
        ".arrow: row 1: id 600",
    ),
    "a negative id": (lambda home: save(home, [[5, -100]], length=2), ".arrow: row 0: id -100"),
    "another dtype": (lambda home: save(home, [[5.0, 0.0]], dtype="float32"), "is list<"),
    "no such column": (lambda home: save(home, [[5, EOT]], column="ids"), "--column: ids"),
    "a torn stream": (
        lambda home: change(arrow(save(home, [[5, EOT]])), lambda data: data[:-8]),
        "truncated",
    ),
    "a torn batch": (
        lambda home: change(arrow(save(home, [[5, EOT]] * 99)), lambda data: data[:-99] + data[-8:]),
        "no whole Arrow stream",
    ),
    "no stream": (lambda home: arrow(save(home, [[5, EOT]])).write_bytes(b""), "no whole Arrow stream"),
    "a file elsewhere": (
        lambda home: state(home, _data_files=[{"filename": "../x"}]),
        "no name of a file beside",
    ),
    "indices": (lambda home: state(home, _indices_data_files=[{"filename": "i"}]), "flatten_indices"),
    "no list of files": (state, "it lists no data files"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_right_is_refused_and_leaves_nothing(
    case: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = REFUSALS[case]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    assert do(tokenizer, tmp_path / "out", tmp_path / "in") == 65
    assert words in capsys.readouterr().err
    assert not [entry for entry in tmp_path.iterdir() if "out" in entry.name]


def test_shards_that_were_moved_are_found_by_name_and_orphans_are_told(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = load_tokenizer(tokenizer).sha256[:16]
    place = shards(tmp_path / "in", [EOT], train=told(f"/old/place/{FIRST}"), tokenizer_hash=said)
    write_tokens(place / "train_000007.bin", [1])
    assert do(tokenizer, tmp_path / "out", place) == 0
    assert rows(tmp_path / "out") == [[EOT]]
    assert "train_000007.bin" in capsys.readouterr().out


def test_who_vouches_for_the_tokenizer_is_believed(tokenizer: Path, tmp_path: Path) -> None:
    place = write_predecessor(tmp_path / "in", {"train": [[1, EOT]]}, tokenizer="cd" * 32)
    assert do(tokenizer, tmp_path / "out", place, "--trust-tokenizer") == 0


@pytest.mark.parametrize("make", [FORMS["raw"], FORMS["lists"]])
def test_what_changes_while_it_is_read_is_refused(
    make: Make,
    tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    take = token_stream.Documents.take

    def touch_and_take(self: Any, piece: Any) -> Any:
        os.utime(piece.file, ns=(1, 1))
        return take(self, piece)

    monkeypatch.setattr(token_stream.Documents, "take", touch_and_take)
    assert do(tokenizer, tmp_path / "out", tmp_path / "in") == 65
    assert "it changed while it was read" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_an_exports_own_note_is_held_against_what_lies_there(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given what `stoker export` notes of a file: one with another bit, size or name is not taken over."""
    place = tmp_path / "in"
    path = write_tokens(place / "train.bin", [1, 2, EOT])
    told = {"tokens": 3, "size": 6, "sha256": hash_file(path).sha256}
    note = {"format": "nanogpt", "dtype": "uint16", "files": {"train.bin": told}}
    (place / "meta.json").write_text(json.dumps(note))
    assert do(tokenizer, tmp_path / "out", place) == 0
    for ids, words in (([1, 3, EOT], "sha256 is not the one"), ([1, EOT], "says otherwise")):
        write_tokens(path, ids)
        assert do(tokenizer, tmp_path / "again", place) == 65
        assert words in capsys.readouterr().err
    path.rename(place / "other_train.bin")
    assert do(tokenizer, tmp_path / "again", place) == 65
    assert "missing, meta" in capsys.readouterr().err


def test_ids_of_a_large_vocabulary_keep_their_width(tokenizer: Path, tmp_path: Path) -> None:
    body = json.loads(tokenizer.read_text())
    body["added_tokens"].append({**body["added_tokens"][0], "id": 70_000, "content": "<last>"})
    (tmp_path / "large.json").write_text(json.dumps(body))
    write_tokens(tmp_path / "train.bin", [1, 69_999, EOT, 70_000, EOT], "<u4")
    assert do(tmp_path / "large.json", tmp_path / "out", tmp_path / "train.bin") == 0
    assert rows(tmp_path / "out") == [[1, 69_999, EOT], [70_000, EOT]]
    assert pq.read_schema(tmp_path / "out" / "tokens-00000.parquet").field("tokens").type == pa.list_(
        pa.uint32()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fineweb.yaml", "{in}", "--trust-tokenizer"], "takes no pipeline file any more: it writes parquet"),
        (["{in}", "out", "--tokenizer-sha256", "ab"], "name the tokenizer.json itself with --tokenizer"),
        (["{in}", "out"], "--tokenizer"),
        (["nowhere", "out", "--tokenizer", "{tokenizer}"], "nowhere does not exist"),
        (["{in}", "{in}", "--tokenizer", "{tokenizer}"], "exists; name a directory that is to be made"),
    ],
)
def test_what_went_is_refused_with_what_replaces_it(
    arguments: list[str], words: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = write_tokens(tmp_path / "in" / "train.bin", STREAM).parent
    assert (
        exit_code(
            ["data", "import", *(one.format_map({"in": place, "tokenizer": tokenizer}) for one in arguments)]
        )
        == 64
    )
    assert words in " ".join(capsys.readouterr().err.split())


def test_killed_in_the_middle_nothing_is_taken_for_whole_and_the_next_one_finishes(
    tokenizer: Path, tmp_path: Path
) -> None:
    place = write_tokens(tmp_path / "in" / "train.bin", STREAM).parent
    command = [
        STOKER,
        "data",
        "import",
        str(place),
        str(tmp_path / "data" / "out"),
        "--tokenizer",
        str(tokenizer),
    ]
    (tmp_path / "data").mkdir()
    environ = {**os.environ, **halts_at(tmp_path / "halts", ["converted"])}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as killed:
        wait_halted(killed.pid)
        killed.kill()
    (left,) = (tmp_path / "data").iterdir()
    assert left.name == ".tmp-out", "a name that no folder source enters"
    assert list(left.iterdir())
    subprocess.run(command, check=True, capture_output=True)
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["out"]
    assert rows(tmp_path / "data" / "out") == documents(STREAM)


def test_a_disk_that_takes_no_more_leaves_nothing_half(tokenizer: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same error from the same call."""
    place = write_tokens(tmp_path / "in" / "train.bin", STREAM * 20)
    limits = {resource.RLIMIT_FSIZE: 8192}
    ended = run_measured("data", "import", place, tmp_path / "out", "--tokenizer", tokenizer, limits=limits)
    assert ended.returncode == 74, ended.stderr
    assert "cannot write" in ended.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_memory_does_not_grow_with_what_is_imported(tokenizer: Path, tmp_path: Path) -> None:
    """Given 32 Mi tokens, raw and in lists, the command peaks below 256 MiB, its imports included."""
    ids = np.tile(np.array([*range(1, 300), EOT], "<u2"), (32 << 20) // 300)
    write_tokens(tmp_path / "raw" / "train.bin", ids)  # type: ignore[arg-type]
    (tmp_path / "lists").mkdir()
    row = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 300 * 1001, 300, np.int32)), pa.array(ids[: 300 * 1000])
    )
    batch = pa.record_batch([row], ["input_ids"])
    with (
        pa.OSFile(str(tmp_path / "lists" / "data.arrow"), "wb") as file,
        pa.ipc.new_stream(file, batch.schema) as out,
    ):
        for _ in range(ids.size // (300 * 1000)):
            out.write_batch(batch)
    (tmp_path / "lists" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    for name in ("raw", "lists"):
        ended = run_measured(
            "data", "import", tmp_path / name, tmp_path / f"{name}-out", "--tokenizer", tokenizer
        )
        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout.split()[-1]) < 256 << 20
