"""One parser for every file: bounded in bytes and depth, whatever stack it is called on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
import stokerd
from stoker.store import record
from stoker.store.errors import UnknownFormat
from stoker.store.record import MOST_DEPTH, parse_json, require_version


def nested(levels: int, around: str) -> bytes:
    begin, end = around.split("1")
    return (begin * levels + "1" + end * levels).encode()


def on_a_full_stack(call: Callable[[], Any], frames: int) -> Any:
    return call() if frames == 0 else on_a_full_stack(call, frames - 1)


@pytest.mark.parametrize("around", ["[1]", '{"a":1}', '[{"a":1}]'])
def test_the_bound_is_the_same_on_any_stack_and_for_any_depth(around: str) -> None:
    per = len(re.findall(r"[\[{]", around))
    deepest = nested(MOST_DEPTH // per, around)
    assert on_a_full_stack(lambda: parse_json(deepest), sys.getrecursionlimit() // 2) == parse_json(deepest)
    for levels in (MOST_DEPTH // per + 1, 900, 100_000):
        with pytest.raises(ValueError, match="nested deeper than 64"):
            parse_json(nested(levels, around))


def test_many_brackets_side_by_side_are_not_deep() -> None:
    value = {"files": [["a", 1]] * 1000}
    assert parse_json(b'{"files":[' + b",".join([b'["a",1]'] * 1000) + b"]}") == value


def test_what_is_too_long_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        parse_json(b"[" * 11)


@pytest.mark.parametrize("text", ["[1", '{"a":NaN}', "1 2", "", "\xff"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text.encode("latin-1"))


def test_an_unknown_version_names_the_file_and_both_versions() -> None:
    require_version({"v": 1}, "x.json")
    with pytest.raises(UnknownFormat, match=r"x\.json is of format version 2, this Stoker reads version 1"):
        require_version({"v": 2}, "x.json")


def test_nothing_else_parses_json() -> None:
    """But the definition of a tokenizer, which was parsed here before, and the installer, which is alone."""
    roots = [Path(package.__path__[0]) for package in (stoker, stokerd)]
    files = [file for root in roots for file in root.rglob("*.py")]
    parsers = {
        file.name for file in files if re.search(r"json\.loads?\(|raw_decode|JSONDecoder", file.read_text())
    }
    assert parsers == {"record.py", "engine.py", "installer.py"}
