"""The examples of trainers of the user's own: few lines are added to each, and pipeline files run them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stoker.config.load import examples_dir, load_pipeline

EXTERNAL = examples_dir() / "external"
MARK = "# stoker"
MOST_CHANGED = 15


@pytest.mark.parametrize("script", sorted(EXTERNAL.glob("*.py")), ids=lambda script: script.stem)
def test_at_most_fifteen_marked_lines_are_all_that_an_example_has_of_stoker(script: Path) -> None:
    _, doc, code = script.read_text().split('"""', 2)
    assert MARK in doc
    lines = code.splitlines()
    ast.parse(code)
    assert 0 < sum(MARK in line for line in lines) <= MOST_CHANGED
    without = "\n".join(line for line in lines if MARK not in line)
    ast.parse(without)
    assert "stoker" not in without.lower()


@pytest.mark.parametrize("file", sorted(EXTERNAL.glob("*.yaml")), ids=lambda file: file.stem)
def test_each_example_has_a_pipeline_file_that_runs_it(file: Path) -> None:
    pipeline = load_pipeline(file)
    command, external = pipeline.train.command, pipeline.train.external_trainer
    assert command is not None and external is not None
    (script,) = (word for word in command if word.endswith(".py"))
    assert (EXTERNAL / script.replace("plain_", "train_")).exists()
