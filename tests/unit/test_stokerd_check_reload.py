"""What a reload finds changed, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config.load import load_pipeline
from stoker.kit.handover import VERSION
from stoker.store.errors import ConfigError
from stoker.store.layout import STAGE_SHARD
from stokerd.common.check_reload import changes, main
from support.pipelines import make_pipeline


def checked(home: Path, **changed: Any) -> dict[str, Any]:
    """The check's result after a change of the file."""
    (home / "first").mkdir()
    before = load_pipeline(make_pipeline(home / "first").file)
    file = before.file
    text = make_pipeline(
        home / "second", **{"state": str(before.state), "hot": str(before.hot), **changed}
    ).file
    file.write_text(text.read_text().replace(str(home / "second"), str(home / "first")))
    task = {"daemon": STAGE_SHARD, "file": str(file), "config": before.model_dump(mode="json")}
    return main(task, lambda *_, **__: None)  # type: ignore[arg-type]


def test_the_keys_that_changed_are_named(tmp_path: Path) -> None:
    found = checked(tmp_path, supervise__hang_limit="20m", train__steps=77)
    assert (sorted(found["changed"]), found["handover"]) == (["supervise.hang_limit", "train.steps"], VERSION)


@pytest.mark.parametrize(
    ("key", "value"),
    [("train__run", "other"), ("state", "elsewhere"), ("hot", "elsewhere"), ("metrics__ports__shard", 1)],
)
def test_what_a_running_daemon_cannot_change_is_refused_with_its_line(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"data.yaml:\d+: {key.replace('__', '.')}: a reload cannot"):
        checked(tmp_path, **{key: value})


def test_changes_name_a_key_that_is_on_one_side_alone() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": {"f": 1}}
    now = {"a": 1, "b": {"c": 2, "d": 2}, "e": None, "g": 3}
    assert list(changes(before, now)) == ["b.c", "e", "g"]
