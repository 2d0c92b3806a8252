"""Prompt cases: lines {"id", "category", "prompt", "checks"}; an answer passes a case with all its checks.

The tasks of etc/suites name these functions. Documents, lines {"text"}, are read by the same one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from stoker.cli.options import did_you_mean
from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.record import parse_json

_URL = re.compile(r"(?i)\b(?:https?://|www\.)")


def repeated_run(text: str) -> int:
    """Returns the most characters in a row that only repeat what stands right before them.

    "the the the" has 7, "aaaa" 3; a piece counts once it is repeated whole.
    """
    longest = 0
    for period in range(1, len(text) // 2 + 1):
        same = (one == other for one, other in zip(text, text[period:], strict=False))
        runs = (sum(1 for _ in run) for is_same, run in groupby(same) if is_same)
        longest = max(longest, *(run for run in runs if run >= period), 0)
    return longest


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?i)(?<!\w){re.escape(word)}(?!\w)", text) is not None


# The type of a check's limit, and whether an answer passes.
CHECKS: dict[str, tuple[type, Callable[[str, Any], bool]]] = {
    "min_chars": (int, lambda text, least: len(text.strip()) >= least),
    "expect_any": (list, lambda text, words: any(_has_word(text, word) for word in words)),
    "reject_any": (list, lambda text, words: not any(word.casefold() in text.casefold() for word in words)),
    "max_urls": (int, lambda text, most: len(_URL.findall(text)) <= most),
    "max_repeated_run": (int, lambda text, most: repeated_run(text) <= most),
    "max_non_ascii": (int, lambda text, most: sum(not sign.isascii() for sign in text) <= most),
}


def process_results(case: Mapping[str, Any], answers: list[str]) -> dict[str, int]:
    """Returns 1 where the answer of a case passes, else 0, as `passed` and by the name of its category.

    (`process_results` of a task.)
    """
    # An answer ends after so many tokens, which may be within the bytes of a sign.
    checks, answer = parse_json(case["checks"].encode()), answers[0].rstrip("\ufffd")
    passed = int(all(CHECKS[name][1](answer, limit) for name, limit in checks.items()))
    return {name: passed for name in ("passed", case.get("category")) if name}


def load(file: str, **_: object) -> dict[str, Any]:
    """Returns the lines of a file as the split `test` (`custom_dataset` of a task).

    `file` lies in the folder `include`. Raises DataError with the line of what is wrong.
    """
    from datasets import Dataset

    path, rows = Path(file).absolute(), []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(_row(parse_json(line)))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty; write a line of JSON for each document")
    return {"test": Dataset.from_list(rows)}


def _row(row: Any) -> dict[str, Any]:
    """Returns a line's document; raises ValueError where it is none."""
    checks = row.get("checks") if isinstance(row, dict) else None
    names = ("text",) if checks is None else ("id", "prompt")
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in names):
        raise ValueError("a line is a mapping with a text, or with an id, a prompt and checks; write it so")
    for name, limit in (checks or {}).items():
        if name not in CHECKS:
            raise ValueError(f"there is no check {name!r}; {did_you_mean(name, CHECKS, ', '.join(CHECKS))}")
        if type(limit) is not (kind := CHECKS[name][0]):
            raise ValueError(f"the check {name!r} takes {kind.__name__}, not {limit!r}; write that")
    # As one text: in a table each case would have the checks of all others, empty.
    return row if checks is None else {**row, "checks": canonical_json(checks).decode()}
