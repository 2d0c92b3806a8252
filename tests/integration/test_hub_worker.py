"""Listing a hub with its own client; STOKER_HUB_VERSIONS=1.0.0,2.4.0 tries others than the one installed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.hub_listing import list_hub, one_worker, result_of
from support.loopback_hub import REPO, LoopbackHub, noise

LIBRARY = Path(__file__).parents[2] / "lib"
SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
for kind, repo in zip(sys.argv[3::2], sys.argv[4::2]):
    snapshot_download(repo, repo_type=kind, endpoint=sys.argv[1], local_dir=f"{sys.argv[2]}/{kind}")
"""


@pytest.fixture(scope="module", params=os.environ.get("STOKER_HUB_VERSIONS", "").split(",") or [""])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The interpreter that has the client: this one, or one of a throw-away environment for each version."""
    if not request.param:
        with one_worker():
            yield sys.executable
        return
    place = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    there = str(place / "bin" / "python")
    subprocess.run(
        [there, "-m", "pip", "install", "-q", f"huggingface_hub=={request.param}"], check=True, timeout=300
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.kit.workers.pipes.sys", SimpleNamespace(executable=there))
        patch.setenv("PYTHONPATH", str(LIBRARY))
        with one_worker():
            yield there


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


def test_the_hubs_own_client_gets_everything_from_it(hub: LoopbackHub, python: str, tmp_path: Path) -> None:
    hub.control("set", xet=True)
    environ = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "*"}
    words = [python, "-c", SNAPSHOT, hub.endpoint, str(tmp_path), "dataset", REPO, "model", "org/m"]
    subprocess.run(words, env=environ, check=True, capture_output=True, timeout=120)
    for number in range(7):
        assert (tmp_path / f"dataset/data/f{number}.parquet").read_bytes() == noise(2000, number)
    assert (tmp_path / "dataset/README.md").read_bytes() == b"hello\n"
    assert (tmp_path / "model/w/model.bin").read_bytes() == noise(3000, 9)


def test_every_page_of_a_commit_is_listed_with_sizes_and_sums(hub: LoopbackHub, python: str) -> None:
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


def test_a_model_is_listed_and_a_pinned_commit_needs_no_question_what_it_means(
    hub: LoopbackHub, python: str
) -> None:
    commit = hub.control("head", repo="model/org/m")
    found = result_of(hub, repo="org/m", repo_type="model", pinned=commit, include=["**"])
    assert (found["revision"], found["files"]) == (commit, 1)
    assert not hub.requests("revision")


@pytest.mark.parametrize("revision", ["v1.0", "refs/convert/parquet", "the commit"])
def test_a_tag_a_branch_and_a_commit_are_pinned_to_what_they_mean(
    revision: str, hub: LoopbackHub, python: str
) -> None:
    first = hub.control("head", repo=f"dataset/{REPO}")
    hub.control("set", refs={"v1.0": first, "refs/convert/parquet": first})
    hub.put("data/later.parquet", b"later")
    try:
        found = result_of(hub, revision=first if revision == "the commit" else revision)
        assert (found["revision"], found["files"]) == (first, 7)
        assert result_of(hub)["files"] == 8
    finally:
        (hub.root / f"dataset/{REPO}/data/later.parquet").unlink()


def test_a_pinned_commit_that_vanished_is_told_as_that(hub: LoopbackHub, python: str) -> None:
    found = result_of(hub, pinned="9a40" * 10)
    assert found["class"] == "vanished" and "9a409a409a40 is not in" in found["reason"]
    found = result_of(hub, revision="9a409a4")
    assert found["class"] == "missing" and "40 digits" in found["reason"]


def test_pages_that_lead_in_a_circle_end_the_listing(hub: LoopbackHub, python: str) -> None:
    hub.control("set", circle=True)
    found = result_of(hub)
    assert found["class"] == "broken" and "circle" in found["reason"]
    assert len(hub.requests("tree")) == 2


def test_the_token_is_not_sent_where_pages_and_redirects_lead(
    hub: LoopbackHub, python: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("good-token")
    hub.control("set", next_host=2)
    assert result_of(hub, token_file=str(tmp_path / "token"))
    hub.control("set", next_host=0)
    hub.fault("elsewhere", on="api", path="tree")
    list_hub(hub, token_file=str(tmp_path / "token"))
    sent = {(each["host"], each["authorization"]) for each in hub.requests("tree")}
    assert sent == {("127.0.0.1", "Bearer good-token"), ("127.0.0.3", None)}
    assert len([each for each in hub.requests("tree") if each["host"] == "127.0.0.3"]) == 2


@pytest.mark.parametrize(
    "proxy",
    ["socks5://user:sEcret@127.0.0.1:1", "foo://user:sEcret@127.0.0.1:1", "http://user:sEcret#@127.0.0.1:1"],
)
def test_a_proxy_that_no_client_can_use_is_told_by_its_variables(
    proxy: str, hub: LoopbackHub, python: str
) -> None:
    _, ended = list_hub(hub, environ={"HTTP_PROXY": proxy, "NO_PROXY": ""})
    told = ended.reason() + "".join(ended.stderr_tail)
    assert ended.code == 69 and "HTTP_PROXY" in told and "sEcret" not in told


def test_a_name_that_would_steer_a_terminal_is_told_by_numbers(hub: LoopbackHub, python: str) -> None:
    steering = ["a\x1b[2Jb.parquet", "a\nb.parquet", "a\x00b.parquet", "\ud800.parquet"]
    hub.control(
        "set", extra=[{"type": "file", "oid": "0" * 40, "size": 3, "path": each} for each in steering]
    )
    told = [path for path, _ in result_of(hub)["refused"]]
    assert told == ["a\\x1b[2Jb.parquet", "a\\x0ab.parquet", "a\\x00b.parquet", "\\ud800.parquet"]


def test_a_path_that_leaves_its_root_is_refused_and_a_file_that_is_a_folder_too(
    hub: LoopbackHub, python: str
) -> None:
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
    fault: dict[str, object], kind: str, after_s: float | None, hub: LoopbackHub, python: str
) -> None:
    hub.fault("status", on="api", **fault)
    found = result_of(hub)
    assert (found["status"], found["class"], found["retry_after_s"]) == ("failed", kind, after_s)
    assert [each["status"] for each in hub.requests("api")].count(fault["code"]) == 1


def test_a_gated_repository_names_its_page_and_the_token_is_never_told(
    hub: LoopbackHub, python: str, tmp_path: Path
) -> None:
    hub.control("set", gated={f"dataset/{REPO}": "good-token"})
    (tmp_path / "token").write_text("bad-token")
    page = f"{hub.endpoint}/datasets/{REPO}"
    without, bad = result_of(hub), list_hub(hub, token_file=str(tmp_path / "token"))
    assert without["class"] == "gated" and page in without["reason"] and "token_file" in without["reason"]
    assert bad[1].result is not None and bad[1].result["class"] == "gated"
    (tmp_path / "token").write_text("good-token")
    good, ended = list_hub(hub, token_file=str(tmp_path / "token"))
    assert ended.result is not None and ended.result["files"] == 7
    assert "-token" not in json.dumps([bad[0], bad[1].result, good, ended.result, ended.stderr_tail])


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"repo": "org/none"}, "unauthorized"),  # the hub does not say whether it is private
        ({"revision": "nope"}, "missing"),
        ({"repo": "a b/c"}, "refused"),
        ({"endpoint": "http://127.0.0.1:1"}, "connect"),
        ({"environ": {"HF_HUB_OFFLINE": "1"}}, "offline"),
    ],
)
def test_what_cannot_be_listed_says_what_it_is(
    changes: dict[str, object], kind: str, hub: LoopbackHub, python: str
) -> None:
    found = result_of(hub, **changes)
    assert found["class"] == kind and found["reason"]
