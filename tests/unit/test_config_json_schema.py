"""The JSON Schema of pipeline files: it holds for every example, and refuses what an editor should mark."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from stoker.cli.main import cli
from stoker.config.load import examples_dir
from support.config_files import MINIMAL

EXAMPLES = [path for folder in ("", "external") for path in sorted((examples_dir() / folder).glob("*.yaml"))]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    body = json.loads(CliRunner().invoke(cli, ["config", "schema"]).output)
    Draft202012Validator.check_schema(body)
    return Draft202012Validator(body)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid(schema: Draft202012Validator, path: Any) -> None:
    assert not [error.message for error in schema.iter_errors(yaml.safe_load(path.read_text()))]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("stage: {free_floor: 80GiB, settle: 3m, queue_bytes: 20000000}", ""),
        ("stage: {settle: 1h30m, copies: auto}", ""),
        ("supervise: {stop_time: 500ms, limits: {load: null}}", ""),
        ("plan: {epochs: unlimited, segment_tokens: 1e9}", ""),
        ("stage: {free_floor: 80Gib}", "stage.free_floor"),
        ("stage: {settle: 3 minutes}", "stage.settle"),
        ("stage: {settle: 180}", "stage.settle"),
        ("stage: {queue_files: 0}", "stage.queue_files"),
        ("plan: {order: random}", "plan.order"),
        ("plan: {epochs: many}", "plan.epochs"),
        ("metrics: 9811", "metrics"),
        ("metrics: {ports: {trian: 1}}", "metrics.ports"),
        ("trian: {steps: 1}", ""),
        ("evict: {target_free: [1]}", "evict.target_free"),
        ("quarantine: {keep_checkpoints: true}", "quarantine.keep_checkpoints"),
    ],
)
def test_units_are_texts_or_numbers_and_unknown_keys_and_wrong_types_are_refused(
    schema: Draft202012Validator, more: str, key: str
) -> None:
    errors = [*schema.iter_errors(yaml.safe_load(f"{MINIMAL}{more}\n"))]
    is_wrong = bool(key) or more.startswith("trian")
    assert [".".join(map(str, error.path)) for error in errors] == ([key] if is_wrong else [])


def test_a_file_may_leave_out_what_the_loader_fills_in_and_nothing_else(schema: Draft202012Validator) -> None:
    least = {"name": "own", "train": {"command": "python train.py --seed 1"}}
    assert schema.is_valid(least)
    assert not schema.is_valid({"train": {"command": ["train"]}})
    shape = {"layers": 1, "width": 8, "heads": 2, "ffn": 8}
    assert schema.is_valid({"name": "own", "train": {"model": shape}})
    assert not schema.is_valid({"name": "own", "train": {"model": {"layers": 1}}})
    assert not schema.is_valid({"name": "own", "train": {"model": "huge"}})


def test_keys_have_their_meaning_and_a_default_that_the_file_can_have(schema: Draft202012Validator) -> None:
    body = schema.schema
    sections = [body, *body["$defs"].values()]
    keys = [key for section in sections for key in section["properties"].values()]
    assert not [
        key
        for key in keys
        if "default" in key
        and not schema.evolve(schema=key | {"$defs": body["$defs"]}).is_valid(key["default"])
    ]
    every = body["$defs"]["Checkpoint"]["properties"]["every"]
    assert (every["default"], every["description"]) == (
        "30m",
        "what a crash can cost at most; null: only by steps",
    )
    assert sum("description" in key for key in keys) > len(keys) // 2
