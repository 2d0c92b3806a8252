"""What a reload finds changed, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import yaml

from stoker.config.changes import changes
from stoker.config.load import load_pipeline
from stoker.kit.handover import VERSION
from stoker.store.errors import ConfigError, UnknownFormat
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.supervise.state import Phase, RunState
from stokerd.common.check_reload import main
from support.pipelines import make_pipeline

NOW = RunState(Phase.CLEANING, 0.0).record()


def checked(
    home: Path,
    daemon: str,
    running: Mapping[str, Any] = NOW,
    running_with: Mapping[str, Any] = MappingProxyType({}),
    **changed: Any,
) -> dict[str, Any]:
    """The check's result after a change of the file."""
    (home / "data").mkdir()
    before = make_pipeline(home / "data").pipeline
    places = {"state": str(before.state), "hot": str(before.hot)}
    asked = make_pipeline(home / "changed", **{**places, **changed}).file.read_text()
    before.file.write_text(asked.replace(str(home / "changed"), str(home / "data")))
    config = before.model_dump(mode="json") | running_with
    task = {"daemon": daemon, "file": str(before.file), "config": config, "work": {"run": {"state": running}}}
    return main(task, cast(Any, None))


def test_the_keys_that_changed_are_named(tmp_path: Path) -> None:
    found = checked(tmp_path, TRAIN_SUPERVISOR, supervise__hang_limit="20m", train__steps=77)
    assert (sorted(found["changed"]), found["handover"]) == (["supervise.hang_limit", "train.steps"], VERSION)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state", "elsewhere"),
        ("hot", "elsewhere"),
        ("metrics__ports__train", 1),
        ("train__run", "other"),
        ("train__seed", 2),
        ("train__model__layers", 9),
        ("train__seq_len", 128),
    ],
)
def test_what_a_running_daemon_cannot_change_is_refused_with_its_line(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"data.yaml:\d+: {key.replace('__', '.')}: a reload cannot"):
        checked(tmp_path, TRAIN_SUPERVISOR, **{key: value})


def test_a_run_cannot_get_a_dataset_by_a_reload(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset: a reload cannot"):
        checked(tmp_path, TRAIN_SUPERVISOR, running_with={"dataset": None})


def test_daemons_without_a_run_may_change_what_only_a_run_keeps(tmp_path: Path) -> None:
    assert checked(tmp_path, STAGE_SHARD, train__seed=2)["changed"] == ["train.seed"]


def test_code_that_cannot_read_the_state_of_the_one_that_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="cannot take over the running launch"):
        checked(tmp_path, TRAIN_SUPERVISOR, {**NOW, "phase": "dreaming"})


def test_changes_name_a_key_that_is_on_one_side_alone() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": {"f": 1}}
    now = {"a": 1, "b": {"c": 2, "d": 2}, "e": None, "g": 3, "later": False}
    assert list(changes(before, now)) == ["b.c", "e", "g"]


def test_a_reload_cannot_put_a_trainer_of_the_users_own_in_the_place_of_another(tmp_path: Path) -> None:
    built_in = ("steps", "seq_len", "global_batch", "model")
    file = make_pipeline(tmp_path / "data").file
    body = yaml.safe_load(file.read_text())
    config = load_pipeline(file).model_dump(mode="json")
    body["train"] = {key: value for key, value in body["train"].items() if key not in built_in}
    file.write_text(yaml.safe_dump(body | {"train": body["train"] | {"command": ["train"]}}))
    task = {"daemon": TRAIN_SUPERVISOR, "file": str(file), "config": config, "work": {"run": {"state": NOW}}}
    with pytest.raises(ConfigError, match=r"train\.command: a reload cannot change it"):
        main(task, cast(Any, None))
    task["config"] = load_pipeline(file).model_dump(mode="json")
    file.write_text(yaml.safe_dump(body | {"train": body["train"] | {"command": ["train", "--fast"]}}))
    assert main(task, cast(Any, None))["changed"] == ["train.command"]
