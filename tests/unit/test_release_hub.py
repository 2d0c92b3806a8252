"""What publish compares and refuses, what fetch-model takes, and how long both are patient."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.corpus.http.hub import HubRepo, explain
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.source.listing import Row
from stoker.release.fetch_model import select
from stoker.release.hub import persist
from stoker.release.publish import changes, read_bundle
from stoker.store.errors import DataError, StokerError
from support.bundles import small_bundle


def large(path: str, sha256: str) -> Row:
    return path, 1, sha256, None, ""


def small(path: str, git: str) -> Row:
    return path, 1, None, git, ""


@pytest.mark.parametrize(
    ("rows", "add", "drop"),
    [
        ([], ["config.json", "w.safetensors"], []),
        ([large("w.safetensors", "sw"), small("config.json", "gc")], [], []),
        ([large("w.safetensors", "old"), small("config.json", "gc")], ["w.safetensors"], []),
        ([large("w.safetensors", "sw"), small("config.json", "old")], ["config.json"], []),
        ([small("w.safetensors", "gw"), large("config.json", "sc")], [], []),
        ([small("w.safetensors", "sw"), large("config.json", "gc")], ["config.json", "w.safetensors"], []),
        (
            [large("w.safetensors", "sw"), small("config.json", "gc"), small(".gitattributes", "x")],
            [],
            [],
        ),
        (
            [large("w.safetensors", "sw"), small("config.json", "gc"), large("a/old.bin", "sw")],
            [],
            ["a/old.bin"],
        ),
    ],
    ids=["empty", "equal", "weights", "git", "stored the other way", "sums mixed up", "the hub's", "deleted"],
)
def test_a_listing_is_compared_by_the_sum_that_it_has(
    rows: list[Row], add: list[str], drop: list[str]
) -> None:
    sums = {"config.json": "sc", "w.safetensors": "sw"}
    names = {"config.json": "gc", "w.safetensors": "gw"}
    assert changes(sums, rows, names.__getitem__) == (add, drop)


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ({"proven": False}, "pip install 'stoker[hf]'"),
        ({"proven": "true"}, "nothing has proven"),
        ({"license": None}, "no licence"),
        ({"license": ""}, "no licence"),
    ],
)
def test_a_bundle_that_is_not_fit_is_refused(release: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="again with `stoker bundle`") as caught:
        read_bundle(small_bundle(tmp_path / "bundle", **release))
    assert said in str(caught.value)


def test_a_flipped_bit_an_unlisted_file_and_no_bundle_at_all_are_refused(tmp_path: Path) -> None:
    place = small_bundle(tmp_path / "bundle")
    sums, told = read_bundle(place)
    assert {*sums} == {each.name for each in place.iterdir()} and told["step"] == 20
    for name, data in [("extra.bin", b"pickle"), ("model.safetensors", b"\0" * (1 << 16))]:
        (place / name).write_bytes(data)
        with pytest.raises(DataError, match=name):
            read_bundle(place)
    with pytest.raises(DataError, match="is no bundle"):
        read_bundle(tmp_path / "nothing")


def test_only_safetensors_json_and_text_are_taken() -> None:
    names = ["model.safetensors", "config.json", "merges.txt", "README.md", "SHA256SUMS", "tokenizer.model"]
    never = [
        "pytorch_model.bin",
        "a.pt",
        "a.ckpt",
        "a.pkl",
        "run.py",
        "a.gguf",
        ".gitattributes",
        ".parts/a.json",
    ]
    taken = select([large(name, "s") for name in names + never])
    assert [row[0] for row in taken] == names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["../up.json", "m.safetensors"], "leaves its root"),
        (["/etc/x.json", "m.safetensors"], "no relative path"),
        (["a\nb.json", "m.safetensors"], r"a\x0ab.json: it holds control"),
        (["a.json", "a.json/b.json", "m.safetensors"], "as a file and as a folder"),
        (["m.bin", "config.json"], "no safetensors"),
    ],
)
def test_names_that_deceive_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(DataError) as caught:
        select([large(name, "s") for name in names])
    assert said in str(caught.value)


def test_a_commands_errors_name_its_options_and_the_watchdogs_their_keys() -> None:
    ours, theirs = HubRepo("o/m", "model", commanded=True), HubRepo("o/m", "model")
    for code, about, option, key in [
        ("RepoNotFound", {}, "correct REPO", "correct dataset.source.repo"),
        ("GatedRepo", {}, "set --token-file", "set dataset.source.token_file"),
        ("RevisionNotFound", {"revision": "v1"}, "correct --revision", "correct dataset.source.revision"),
        (
            "RevisionNotFound",
            {"pinned": True},
            "give the command again to",
            "set dataset.source.follow: new_",
        ),
    ]:
        assert option in explain(404, code, ours, token=False, **about)[1]  # type: ignore[arg-type]
        assert key in explain(404, code, theirs, token=False, **about)[1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "tries", "exit_code"),
    [
        ("gated", 1, 69),
        ("offline", 1, 69),
        ("disk_full", 1, 74),
        ("length", 3, 65),
        ("mismatch", 3, 65),
        ("broken", 3, 69),
    ],
)
def test_what_passes_is_tried_again_and_the_rest_is_not(
    kind: str, tries: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("stoker.release.hub.time", SimpleNamespace(sleep=pauses.append))

    def attempt() -> None:
        raise FetchFailed(kind, "why")

    with pytest.raises(StokerError, match="not done: why") as caught:
        persist(attempt, "not done")
    assert caught.value.exit_code == exit_code and len(pauses) == tries - 1


def test_a_server_that_asks_for_a_day_is_not_waited_for() -> None:
    def attempt() -> None:
        raise FetchFailed("throttled", "busy", retry_after_s=86_400.0)

    with pytest.raises(StokerError, match="give the command again later"):
        persist(attempt, "not done")
