"""Listing a hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub_listing import list_hub, result_of
from support.loopback_hub import REPO, LoopbackHub, noise
from support.small_server import small_server

SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], repo_type=sys.argv[2], endpoint=sys.argv[3], local_dir=sys.argv[4]))
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path_factory.mktemp("hub"), page=3) as hub:
        for number in range(7):
            hub.put(f"data/f{number}.parquet", noise(2000, number))
        hub.put("README.md", b"hello\n")
        hub.put("w/model.bin", noise(3000, 9), repo="model/org/m")
        yield hub


@pytest.fixture
def hub(filled: LoopbackHub) -> LoopbackHub:
    filled.control("clear")
    filled.control("forget")
    filled.control("set", gated={}, extra=[], xet=False, circle=False, refs={}, next_host=0)
    return filled


def test_the_hubs_own_client_gets_everything_from_it(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.control("set", xet=True)
    environ = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "*"}
    for kind, repo in (("dataset", REPO), ("model", "org/m")):
        words = [sys.executable, "-c", SNAPSHOT, repo, kind, hub.endpoint, str(tmp_path / kind)]
        subprocess.run(words, env=environ, check=True, capture_output=True, timeout=120)
    for number in range(7):
        assert (tmp_path / f"dataset/data/f{number}.parquet").read_bytes() == noise(2000, number)
    assert (tmp_path / "dataset/README.md").read_bytes() == b"hello\n"
    assert (tmp_path / "model/w/model.bin").read_bytes() == noise(3000, 9)


def test_every_page_of_a_commit_is_listed_with_sizes_and_sums(hub: LoopbackHub) -> None:
    said, ended = list_hub(hub, include=["**"], exclude=["data/f6*"])
    commit = hub.control("head", repo=f"dataset/{REPO}")
    assert said[0] == {"kind": "pinned", "revision": commit}
    rows = {row[0]: row[1:4] for each in said if each["kind"] == "files" for row in each["files"]}
    data = noise(2000, 0)
    git = hashlib.sha1(b"blob 6\0hello\n").hexdigest()
    assert rows["data/f0.parquet"] == [2000, hashlib.sha256(data).hexdigest(), None]
    assert rows["README.md"] == [6, None, git]
    assert len(rows) == 7 and "data/f6.parquet" not in rows
    assert ended.result == {
        "status": "listed",
        "revision": commit,
        "files": 7,
        "refused": [],
        "refused_in_all": 0,
    }
    assert result_of(hub, known=commit) == {"status": "unchanged", "revision": commit}


def test_a_model_is_listed_and_a_pinned_commit_needs_no_question_what_it_means(hub: LoopbackHub) -> None:
    commit = hub.control("head", repo="model/org/m")
    found = result_of(hub, repo="org/m", repo_type="model", pinned=commit, include=["**"])
    assert (found["revision"], found["files"]) == (commit, 1)
    assert not hub.requests("revision")


@pytest.mark.parametrize("revision", ["v1.0", "refs/convert/parquet", "the commit"])
def test_a_tag_a_branch_and_a_commit_are_pinned_to_what_they_mean(revision: str, hub: LoopbackHub) -> None:
    first = hub.control("head", repo=f"dataset/{REPO}")
    hub.control("set", refs={"v1.0": first, "refs/convert/parquet": first})
    hub.put("data/later.parquet", b"later")
    try:
        found = result_of(hub, revision=first if revision == "the commit" else revision)
        assert (found["revision"], found["files"]) == (first, 7)
        assert result_of(hub)["files"] == 8
    finally:
        (hub.root / f"dataset/{REPO}/data/later.parquet").unlink()


def test_a_pinned_commit_that_vanished_is_told_as_that(hub: LoopbackHub) -> None:
    found = result_of(hub, pinned="9a40" * 10)
    assert found["class"] == "vanished" and "9a409a409a40 is not in" in found["reason"]
    found = result_of(hub, revision="9a409a4")
    assert found["class"] == "missing" and "40 digits" in found["reason"]


def test_pages_that_lead_in_a_circle_end_the_listing(hub: LoopbackHub) -> None:
    hub.control("set", circle=True)
    found = result_of(hub)
    assert found["class"] == "broken" and "circle" in found["reason"]
    assert len(hub.requests("tree")) == 2


def test_the_token_is_not_sent_where_pages_and_redirects_lead(hub: LoopbackHub) -> None:
    hub.control("set", next_host=2)
    _, ended = list_hub(hub, environ={"HF_TOKEN": "good-token"})
    assert ended.result is not None
    hub.control("set", next_host=0)
    hub.fault("elsewhere", on="api", path="tree")
    list_hub(hub, environ={"HF_TOKEN": "good-token"})
    sent = {(each["host"], each["authorization"]) for each in hub.requests("tree")}
    assert sent == {("127.0.0.1", "Bearer good-token"), ("127.0.0.3", None)}
    assert len([each for each in hub.requests("tree") if each["host"] == "127.0.0.3"]) == 2


@pytest.mark.parametrize(
    "proxy",
    ["socks5://user:sEcret@127.0.0.1:1", "foo://user:sEcret@127.0.0.1:1", "http://user:sEcret#@127.0.0.1:1"],
)
def test_a_proxy_that_no_client_can_use_is_told_by_its_variables(proxy: str, hub: LoopbackHub) -> None:
    _, ended = list_hub(hub, environ={"HTTP_PROXY": proxy, "NO_PROXY": ""})
    told = ended.reason() + "".join(ended.stderr_tail)
    assert ended.code == 69 and "HTTP_PROXY" in told and "sEcret" not in told


def test_a_name_that_would_steer_a_terminal_is_told_by_numbers(hub: LoopbackHub) -> None:
    steering = ["a\x1b[2Jb.parquet", "a\nb.parquet", "a\x00b.parquet", "\ud800.parquet"]
    hub.control(
        "set", extra=[{"type": "file", "oid": "0" * 40, "size": 3, "path": each} for each in steering]
    )
    told = [path for path, _ in result_of(hub)["refused"]]
    assert told == ["a\\x1b[2Jb.parquet", "a\\x0ab.parquet", "a\\x00b.parquet", "\\ud800.parquet"]


def test_a_path_that_leaves_its_root_is_refused_and_a_file_that_is_a_folder_too(hub: LoopbackHub) -> None:
    paths = ["../../evil.parquet", "/etc/x.parquet", "data"]
    hub.control("set", extra=[{"type": "file", "oid": "0" * 40, "size": 3, "path": each} for each in paths])
    found = result_of(hub, include=["**"])
    assert [path for path, _ in found["refused"]] == paths
    assert (found["files"], found["refused_in_all"]) == (8, 3)


@pytest.mark.parametrize(
    ("fault", "kind", "after_s"),
    [
        ({"code": 429, "retry_after": "7"}, "throttled", 7.0),
        ({"code": 429, "path": "tree", "skip": 1}, "throttled", None),
        ({"code": 503, "path": "tree", "skip": 2}, "server", None),
        ({"code": 500, "path": "revision"}, "server", None),
    ],
)
def test_a_listing_that_fails_is_told_at_once_and_not_retried_in_silence(
    fault: dict[str, object], kind: str, after_s: float | None, hub: LoopbackHub
) -> None:
    hub.fault("status", on="api", **fault)
    found = result_of(hub)
    assert (found["status"], found["class"], found["retry_after_s"]) == ("failed", kind, after_s)
    assert [each["status"] for each in hub.requests("api")].count(fault["code"]) == 1


def test_a_gated_repository_names_its_page_and_the_token_is_never_told(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    hub.control("set", gated={f"dataset/{REPO}": "good-token"})
    (tmp_path / "token").write_text("bad-token")
    page = f"{hub.endpoint}/datasets/{REPO}"
    without, bad = result_of(hub), list_hub(hub, token_file=str(tmp_path / "token"))
    assert without["class"] == "gated" and page in without["reason"] and "token_file" in without["reason"]
    assert bad[1].result is not None and bad[1].result["class"] == "gated"
    good, ended = list_hub(hub, environ={"HF_TOKEN": "good-token"})
    assert ended.result is not None and ended.result["files"] == 7
    assert "-token" not in json.dumps([bad[0], bad[1].result, good, ended.result, ended.stderr_tail])


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"repo": "org/none"}, "unauthorized"),  # the hub does not say whether it is private
        ({"revision": "nope"}, "missing"),
        ({"endpoint": "http://127.0.0.1:1"}, "connect"),
        ({"environ": {"HF_HUB_OFFLINE": "1"}}, "offline"),
    ],
)
def test_what_cannot_be_listed_says_what_it_is(
    changes: dict[str, object], kind: str, hub: LoopbackHub
) -> None:
    found = result_of(hub, **changes)
    assert found["class"] == kind and found["reason"]


def test_what_is_no_hub_and_an_entry_without_its_size_are_told_and_not_a_crash(hub: LoopbackHub) -> None:
    with small_server(lambda request: request.say(b"<html>")) as server:
        found = result_of(hub, endpoint=f"http://127.0.0.1:{server.port}")
    assert found["class"] == "broken" and "no JSON" in found["reason"]
    hub.control("set", extra=[{"type": "file", "oid": "0" * 40, "path": "x.parquet"}])
    found = result_of(hub)
    assert found["class"] == "broken" and "'size'" in found["reason"]
