"""The checks of prompt cases, as tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.evaluation.cases import process_results, repeated_run


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("", 0),
        ("the quick brown fox", 0),
        ("aaaa", 3),
        ("the the the", 7),
        ("abcabcabc", 6),
        ("abcabXabcab", 0),
        ("1\n1\n1\n1\n", 6),
        ("he had had enough", 5),
        ("." * 50, 49),
        ("x" + "I do not know. " * 3 + "y", 30),
    ],
)
def test_a_repeated_run_is_what_only_repeats(text: str, run: int) -> None:
    assert repeated_run(text) == run


@pytest.mark.parametrize(
    ("checks", "passing", "failing"),
    [
        ({"min_chars": 3}, " abc ", " ab   "),
        ({"expect_any": ["Paris", "4"]}, "it is paris.", "Parisian 14"),
        ({"expect_any": ["4"]}, "= 4", "14 and 4th"),
        ({"reject_any": ["<|", "lorem"]}, "a < b", "a LOREMS"),
        ({"max_urls": 1}, "see http://a.b", "www.a.b or https://c.d"),
        ({"max_repeated_run": 7}, "the the the", "the the the t"),
        ({"max_non_ascii": 2}, "Grüße", "東京 é"),
        ({"reject_any": ["\ufffd"]}, "cut within a sign \ufffd", "\ufffd within"),
        ({"min_chars": 1, "max_urls": 0}, "a", ""),
        ({"min_chars": 1, "max_urls": 0}, "a", "http://a"),
    ],
)
def test_a_case_passes_with_all_its_checks(checks: dict[str, Any], passing: str, failing: str) -> None:
    case = {"id": "a", "category": "facts", "prompt": "b", "checks": json.dumps(checks)}
    assert process_results(case, [passing]) == {"passed": 1, "facts": 1}
    assert process_results(case, [failing]) == {"passed": 0, "facts": 0}
