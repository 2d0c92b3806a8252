"""Preflight: every kind of bad file has its own word, and none takes the process with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.corpus.readers import parquet_preflight as preflight_module
from stoker.corpus.readers.finding import Finding
from stoker.corpus.readers.parquet_preflight import preflight
from stoker.store.errors import Transient
from support import bad_parquet as bad
from support.parquet import flip_page, truncate, write_columns, write_fineweb, write_repeated

TEXT = ["a line of text that is long enough"] * 20


def text_file(path: Path) -> Path:
    return write_columns(path, text=pa.array(TEXT))


def written(data: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


def odd_name(path: Path) -> Path:
    schema = bad.structs(2, bad.element(b"schema", children=1), bad.element(b"\xff\xfe"))
    groups = bad.structs(1, bad.group(bad.structs(1, bad.CHUNK)))
    return bad.write_footer(path, bad.footer(schema, 1, groups))


def footer_of(*groups: bytes, rows: int = 1, count: int | None = None) -> Callable[[Path], Path]:
    listed = bad.structs(len(groups) if count is None else count, *groups)
    return lambda path: bad.write_footer(path, bad.footer(bad.TEXT_SCHEMA, rows, listed))


def nested(path: Path) -> Path:
    kind = pa.struct([("text", pa.string())])
    return write_columns(path, doc=pa.array([{"text": line} for line in TEXT], kind))


def twice(path: Path) -> Path:
    pq.write_table(pa.Table.from_arrays([pa.array(TEXT), pa.array(TEXT)], names=["text", "text"]), path)
    return path


def not_utf8(path: Path) -> Path:
    return write_columns(path, text=pa.array([b"fine"] * 9 + [b"\xff\xfe"], pa.binary()))


def many(path: Path) -> Path:
    """Twelve megabytes of footer that would take some gigabytes."""
    columns = bad.structs(1000, bad.CHUNK * 1000)
    return footer_of(*[bad.group(columns)] * 4000)(path)


CASES: list[tuple[str, str, Callable[[Path], Path]]] = [
    ("zero bytes", "zero_bytes", written(b"")),
    ("some words", "not_parquet", written(b"not parquet at all")),
    ("one magic", "truncated", written(b"PAR1")),
    ("two magics", "truncated", written(b"PAR1PAR1")),
    ("half a file", "truncated", lambda path: truncate(text_file(path))),
    ("no rows", "no_rows", lambda path: write_columns(path, text=pa.array([], pa.string()))),
    ("another schema", "missing_column", lambda path: write_columns(path, body=pa.array(TEXT))),
    ("nested", "missing_column", nested),
    ("two of a name", "ambiguous_column", twice),
    ("numbers", "column_type", lambda path: write_columns(path, text=pa.array([1, 2]))),
    ("lists", "column_type", lambda path: write_columns(path, text=pa.array([["a"], ["b"]]))),
    ("nulls alone", "column_type", lambda path: write_columns(path, text=pa.nulls(5))),
    ("not UTF-8", "invalid_utf8", not_utf8),
    ("footer encrypted", "encrypted", lambda path: bad.write_encrypted(path, ["text"], plain_footer=False)),
    ("text encrypted", "encrypted", lambda path: bad.write_encrypted(path, ["text"], plain_footer=True)),
    ("other encrypted", "encrypted", lambda path: bad.write_encrypted(path, ["n"], plain_footer=True)),
    ("a page", "page_corrupt", lambda path: flip_page(write_fineweb(path, 100), 1)),
    ("footer of junk", "footer_corrupt", lambda path: bad.write_footer(path, b"\x15\x02" * 40)),
    ("name not UTF-8", "footer_corrupt", odd_name),
    (
        "footer beyond the file",
        "footer_absurd",
        lambda path: bad.write_footer(path, b"\x15\x02", claimed=1 << 31),
    ),
    ("a million chunks claimed", "footer_absurd", footer_of(bad.field(1, bad.LIST, bad.structs(1_000_000)))),
    ("negative rows", "footer_absurd", footer_of(bad.group(bad.structs(1, bad.CHUNK), -5), rows=-5)),
    ("trillions", "footer_absurd", footer_of(bad.group(bad.structs(1, bad.CHUNK), 1 << 45), rows=1 << 45)),
    ("other sums", "footer_inconsistent", footer_of(bad.group(bad.structs(0)), rows=3)),
]


@pytest.mark.parametrize(("reason", "make"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_kind_of_bad_file_has_its_word(
    tmp_path: Path, reason: str, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / "a.parquet")
    flaw = preflight(path, "text", decode=True)
    assert flaw is not None
    assert flaw.reason == reason, flaw
    assert flaw.detail
    again = preflight(path, "text", decode=True, past_cache=True)
    assert again is not None and again.reason == reason


def test_a_deep_schema_is_absurd(tmp_path: Path) -> None:
    schema = bad.structs(301, bad.element(b"g", children=1) * 300, bad.element(b"text"))
    path = bad.write_footer(tmp_path / "a.parquet", bad.footer(schema, 1, bad.structs(0)))
    flaw = preflight(path, "text")
    assert flaw is not None and flaw.reason == "footer_absurd"


def test_a_footer_that_is_made_to_hurt_takes_little_memory_and_harms_nothing_after_it(
    tmp_path: Path,
) -> None:
    """In a process of its own: what it takes at most is told by the kernel."""
    paths = [str(many(tmp_path / "a.parquet")), str(text_file(tmp_path / "b.parquet"))]
    code = (
        "import json, re, resource, sys; from pathlib import Path\n"
        "from stoker.corpus.readers.parquet_preflight import preflight\n"
        "flaws = [preflight(Path(path), 'text') for path in sys.argv[1:]]\n"
        "limit = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY\n"
        "status = Path('/proc/self/status').read_text()\n"  # ru_maxrss counts from before the exec
        "rss = int(re.search(r'VmHWM:\\s+(\\d+)', status)[1]) * 1024\n"
        "print(json.dumps([[flaw and flaw.reason for flaw in flaws], limit, rss]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    reasons, unlimited, rss = json.loads(ended.stdout)
    assert reasons == ["footer_absurd", None]
    assert unlimited
    assert rss < preflight_module.FOOTER_MEMORY_BYTES + (256 << 20)


def test_a_machine_without_memory_convicts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many(tmp_path / "a.parquet")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("", (), {"available": 1 << 20}))
    with pytest.raises(MemoryError):
        preflight(path, "text")


def test_what_decodes_the_second_time_convicts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_fineweb(tmp_path / "a.parquet", 60)
    calls: list[list[str]] = []
    real = pq.ParquetFile.iter_batches

    def once_wrong(file: pq.ParquetFile, *args: object, columns: list[str], **options: object) -> object:
        calls.append(columns)
        if len(calls) == 1:
            raise pa.ArrowInvalid("a bit fell over in memory")
        return real(file, *args, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", once_wrong)
    with pytest.raises(Transient, match="does when read again"):
        preflight(path, "text", {"language": "text"}, decode=True)
    assert calls == [["text", "language"], ["text"], ["language"]]


def test_damage_is_named_by_its_column(tmp_path: Path) -> None:
    path = flip_page(write_fineweb(tmp_path / "a.parquet", 150), 1, "language_score")
    assert preflight(path, "text", decode=True) is None
    flaw = preflight(path, "text", {"language_score": "number"}, decode=True)
    assert isinstance(flaw, Finding)
    assert (flaw.reason, flaw.row_group, flaw.column) == ("page_corrupt", 1, "language_score")


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_of_every_kind_is_good_with_nulls_in_it(tmp_path: Path, kind: pa.DataType) -> None:
    path = write_columns(tmp_path / "a.parquet", text=pa.array([*TEXT, None]).cast(kind))
    assert preflight(path, "text", decode=True) is None


def test_row_groups_without_rows_are_no_flaw(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(TEXT)})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for each in (table.slice(0, 0), table, table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(each)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups > 2
    assert preflight(tmp_path / "a.parquet", "text", decode=True) is None


def test_names_as_no_one_would_choose_them_are_no_flaw(tmp_path: Path) -> None:
    for name in ("a\nb.parquet", "q'uo\"te.parquet", "🔥 'n' ice.parquet", "x" * 247 + ".parquet"):
        assert preflight(text_file(tmp_path / name), "text", decode=True) is None


def test_a_row_group_that_takes_long_shows_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.corpus.readers.parquet_preflight.ALIVE_EVERY_S", 0.0)
    path, told = write_fineweb(tmp_path / "long.parquet", 600, row_group=600), []
    assert preflight(path, "text", decode=True, progress=told.append) is None
    assert told == [0, 0, 0, 1]


def test_a_text_stored_once_for_all_rows_is_not_decoded_in_one_piece(tmp_path: Path) -> None:
    path = write_repeated(tmp_path / "bomb.parquet", "a long text " * 87_000, rows=200)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from stoker.corpus.readers.parquet_preflight import preflight\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak()\n"
        "assert preflight(Path(sys.argv[1]), 'text', decode=True) is None; print(peak() - before)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert int(ended.stdout) < 120 << 10, "kilobytes; the file holds 200 MB of text"


def test_one_function_opens_parquet_so_that_each_reader_is_bounded() -> None:
    opens = re.compile(r"\b(ParquetFile|ParquetDataset|read_metadata|read_schema|read_table|dataset)\(")
    files = Path(preflight_module.__file__).parents[2].rglob("*.py")
    readers = [file.read_text() for file in files if "import pyarrow" in file.read_text()]
    lines = [line.strip() for text in readers for line in text.splitlines() if opens.search(line)]
    assert lines == ["return pq.ParquetFile("]
