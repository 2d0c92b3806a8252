"""Where a source is fetched from: what may stand in the keys that say so, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.config.origins import (
    endpoint_fault,
    glob_fault,
    repo_fault,
    revision_fault,
    token_file_fault,
    without_secrets,
)
from support.config_files import MINIMAL, load_text, problems_of, write_pipeline

TOKEN = "hf_" + "a1B2" * 8


def told_of(tmp_path: Path, source: dict[str, Any]) -> list[str]:
    """The problems of a file with this source; a JSON mapping is a YAML one."""
    return problems_of(tmp_path, MINIMAL.replace("{kind: folder, path: parquet}", json.dumps(source)))


@pytest.mark.parametrize("repo", ["org/data", "gpt2", "HuggingFaceFW/fine_web-edu.v2", "0rg/1"])
def test_a_repository_is_a_name_with_or_without_its_owner(repo: str) -> None:
    assert repo_fault(repo) == ""


@pytest.mark.parametrize(
    ("repo", "hint"),
    [
        ("https://huggingface.co/datasets/org/d", "write org/d, and repo_type: dataset; another hub"),
        ("https://hub.co/org/m/tree/main", "write org/m; another hub"),
        ("datasets/org/d", "write org/d, and repo_type: dataset"),
        *((repo, "write owner/name") for repo in ("../x", "a/b/c", "a b/c", "-x/y", "https://hub.co/gpt2")),
    ],
)
def test_what_is_no_repositorys_name_is_refused_with_the_name_it_holds(repo: str, hint: str) -> None:
    assert hint in repo_fault(repo)


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/convert/parquet", "feature/x", "a" * 40])
def test_a_revision_may_be_any_name_that_git_allows(revision: str) -> None:
    assert revision_fault(revision) == ""


@pytest.mark.parametrize("revision", ["a b", "../x", "/x", "x/", "a..b", "x^", "-x", "a\tb", "x@{1}", "a//b"])
def test_what_git_allows_in_no_name_is_no_revision(revision: str) -> None:
    assert "no branch, tag or commit" in revision_fault(revision)


@pytest.mark.parametrize(
    "endpoint", ["https://huggingface.co", "http://[::1]:8080/", "https://hub.lan/mirror"]
)
def test_an_endpoint_is_an_address_with_or_without_port_and_path(endpoint: str) -> None:
    assert endpoint_fault(endpoint) == ""


@pytest.mark.parametrize(
    "endpoint",
    [
        "huggingface.co",
        "ftp://h",
        "https://",
        "https://h:99999",
        "https://[::1",
        "https://user:sEcret@h",
        "https://h/?key=sEcret",
        "https://user:sEcret@h:99999",
        "user:sEcret@h",
    ],
)
def test_a_wrong_endpoint_is_told_without_its_password(endpoint: str) -> None:
    fault = endpoint_fault(endpoint)
    assert fault and "sEcret" not in fault


def test_a_token_in_the_place_of_its_file_is_refused_and_never_repeated(tmp_path: Path) -> None:
    (problem,) = told_of(tmp_path, {"kind": "hub", "repo": "a/b", "token_file": TOKEN})
    assert "mine.yaml:6: dataset.source.token_file: is a token" in problem and TOKEN not in problem
    assert not token_file_fault("hub-token") and not token_file_fault("hf_token")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"repo": "datasets/a/b"}, "dataset.source.repo: 'datasets/a/b' is no repository's name"),
        ({"endpoint": "hub.lan"}, "dataset.source.endpoint: 'hub.lan' is no http://"),
        ({"revision": "a b"}, "dataset.source.revision: 'a b' can be no branch"),
        ({"include": ["*.parquet", "[z-a]"]}, "dataset.source.include: '[z-a]' is no glob"),
        ({"exclude": ["[z-a]"]}, "dataset.source.exclude: '[z-a]' is no glob"),
        ({"follow": "always"}, "dataset.source.follow: 'always' is neither false nor new_commits"),
        ({"follow": True}, "dataset.source.follow: 'true' is neither false nor new_commits"),
    ],
)
def test_each_wrong_key_of_a_hub_is_told(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    (problem,) = told_of(tmp_path, {"kind": "hub", "repo": "a/b", **change})
    assert told in problem


def test_what_means_something_for_a_hub_alone_is_refused_elsewhere_unless_it_is_the_default(
    tmp_path: Path,
) -> None:
    urls = {"kind": "urls", "urls_file": "list.txt"}
    assert any("revision: means nothing" in each for each in told_of(tmp_path, {**urls, "revision": "v2"}))
    same = MINIMAL.replace(
        "{kind: folder, path: parquet}",
        "{kind: folder, path: parquet, repo: null, revision: main, repo_type: dataset, follow: false}",
    )
    assert load_text(tmp_path, same).dataset.source.kind == "folder"


def test_too_many_files_at_once_are_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(
        tmp_path, MINIMAL.replace("train:", "download: {files_at_once: 1000}\ntrain:", 1)
    )
    assert "download.files_at_once" in problem and "256" in problem


def test_a_glob_is_one_that_compiles() -> None:
    assert glob_fault("data/**/[0-9]*.parquet") == glob_fault("odd[name") == ""
    assert "bad character range" in glob_fault("[z-a].parquet")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@h/x?s=1#f", "http://h/x"),
        ("http://u:p@[::1/x", "http://[::1/x"),
        ("u:p@h/x", "h/x"),
        ("http://h/a@b", "http://b"),
        ("plain", "plain"),
    ],
)
def test_what_may_be_a_secret_is_left_out_of_what_is_no_address(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_check_reads_what_lies_on_this_machine_of_a_source_that_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.txt").write_text("http://user:sEcret@h/a.bin\nftp://user:sEcret@h/b.bin\n")
    source = {"kind": "urls", "urls_file": "list.txt"}
    file = write_pipeline(tmp_path, MINIMAL.replace("{kind: folder, path: parquet}", json.dumps(source)))
    assert exit_code(["config", "check", str(file)]) == 0
    told = capsys.readouterr().out
    assert "warning: dataset.source.urls_file: " in told and "list.txt:2: 'ftp://h/b.bin' is no http" in told
    assert "sEcret" not in told
    source = {"kind": "hub", "repo": "a/b", "token_file": "nowhere"}
    file = write_pipeline(tmp_path, MINIMAL.replace("{kind: folder, path: parquet}", json.dumps(source)))
    assert exit_code(["config", "check", str(file)]) == 0
    assert "warning: dataset.source.token_file: " in capsys.readouterr().out
