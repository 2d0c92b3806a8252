"""Budgets of code lines: what counts, and what fails above them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "budget"

MODULE = '''"""A docstring
of two lines."""

# a comment
def f() -> str:
    """No code."""
    return """two
lines"""  # code
'''


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"core = 3": "core = 2"}, ["core has 3, its budget is 2"]),
        ({'"stoker.b" = 3': '"stoker.b" = 2'}, ["stoker.b has 3, its budget is 2"]),
        ({"all_extras = 3": "all_extras = 2"}, ["extras has 3, its budget is 2"]),
        ({"tests_to_code = 0.5": "tests_to_code = 0.4"}, ["tests : code has 0.5, its budget is 0.4"]),
        ({'"stoker.a" = 3\n': ""}, ["stoker.a.one is in no package of the table"]),
    ],
)
def test_code_above_a_budget_fails(tmp_path: Path, changes: dict[str, str], wrong: list[str]) -> None:
    budgets = '[tool.stoker.budgets]\ncore = 3\nextras = ["stoker.b"]\nall_extras = 3\ntests_to_code = 0.5\n'
    budgets += '[tool.stoker.budgets.packages]\n"stoker.a" = 3\n"stoker.b" = 3\n'
    for old, new in changes.items():
        budgets = budgets.replace(old, new)
    (tmp_path / "pyproject.toml").write_text(budgets)
    for name in ("lib/stoker/a/one.py", "lib/stoker/b/one.py", "tests/one.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(MODULE)
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False, timeout=60
    )
    assert [line.removeprefix("budget: ").split(";")[0] for line in done.stderr.splitlines()] == wrong
    assert done.returncode == bool(wrong)
