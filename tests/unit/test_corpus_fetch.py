"""What a transfer does after each answer and failure: the decisions, as tables."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.corpus.fetch.transfer import Bandwidth, RateWatch
from stoker.corpus.http.hub import HubRepo, endpoint_of, explain, hub_token, is_commit, origin
from stoker.corpus.http.remote_file import RemoteFile, clashes, read_urls, shown, unsafe
from stoker.corpus.http.retry_rules import (
    COUNTED,
    LOCAL,
    REFUSALS,
    TRANSIENT,
    Answer,
    FetchFailed,
    PartialContent,
    judge,
    next_pause,
    refusal,
    resume_offset,
    retry_after,
    written_end,
)
from stoker.store.errors import ConfigError, UnavailableError
from stoker.store.files import inside

WALL = 1_800_000_000.0
FILE = RemoteFile.listed("a", 100, "s", None, "http://h/a")
BARE = RemoteFile.listed("a", None, None, None, "http://h/a")


def answer(status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    return Answer(status, named, "http://h/a")


# After a failure


@pytest.mark.parametrize("kind", TRANSIENT)
def test_what_passes_by_itself_is_tried_for_ever(kind: str) -> None:
    assert next_pause(FetchFailed(kind, ""), {kind: 99}, 5, 3.0) == (0.0 if kind == "anew" else 3.0)


@pytest.mark.parametrize("kind", [*REFUSALS, *LOCAL, "bug"])
def test_what_no_retry_betters_is_given_up_at_once(kind: str) -> None:
    assert next_pause(FetchFailed(kind, ""), {kind: 1}, 5, 3.0) is None


@pytest.mark.parametrize("kind", COUNTED)
def test_what_is_counted_is_given_up_after_so_many_attempts(kind: str) -> None:
    tries = [next_pause(FetchFailed(kind, ""), {kind: count}, 3, 1.0) for count in (1, 2, 3)]
    assert [pause is None for pause in tries] == [False, False, True]


def test_a_new_address_is_asked_for_at_once_and_only_once() -> None:
    tries = [next_pause(FetchFailed("expired", ""), {"expired": count}, 5, 3.0) for count in (1, 2)]
    assert tries == [0.0, 3.0]


def test_the_servers_wish_outweighs_a_shorter_backoff() -> None:
    for wish, pause in ((60.0, 60.0), (1.0, 3.0)):
        assert next_pause(FetchFailed("throttled", "", retry_after_s=wish), {}, 5, 3.0) == pause


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": formatdate(WALL + 90, usegmt=True)}, 90.0),
        ({"retry-after": formatdate(WALL - 90, usegmt=True)}, 0.0),
        ({"retry-after": "99999999999"}, 86_400.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"ratelimit": '"resolvers";r=0;t=55'}, 55.0),
        ({"ratelimit": '"resolvers";r=12;t=55'}, None),
        ({"retry-after": "3", "ratelimit": '"api";r=0;t=55'}, 3.0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, WALL) == seconds


@pytest.mark.parametrize(
    ("status", "place", "kind"),
    [
        (429, {}, "throttled"),
        (500, {}, "server"),
        (503, {}, "server"),
        (522, {}, "server"),
        (408, {}, "server"),
        (416, {}, "anew"),
        (401, {}, "unauthorized"),
        (403, {}, "forbidden"),
        (403, {"redirected": True}, "expired"),
        (401, {"redirected": True}, "expired"),
        (403, {"redirected": True, "at_hub": True}, "forbidden"),
        (404, {"redirected": True}, "missing"),
        (410, {}, "missing"),
        (451, {}, "refused"),
        (204, {}, "refused"),
    ],
)
def test_what_an_answers_status_means(status: int, place: dict[str, bool], kind: str) -> None:
    assert refusal(Answer(status, {}, "http://h/a", **place), WALL).kind == kind


# Where to go on


@pytest.mark.parametrize(
    ("kept", "file", "part_bytes", "offset"),
    [
        (PartialContent(), FILE, 0, 0),
        (PartialContent(60, '"e"', 100), FILE, 60, 60),
        (PartialContent(60, '"e"', 100), FILE, 75, 60),  # what is beyond the claim is cut away
        (PartialContent(60, '"e"', 100), FILE, 59, 0),
        (PartialContent(60, '"e"', 90), FILE, 60, 0),  # of another file, by its size
        (PartialContent(101, '"e"', None), FILE, 101, 0),
        (PartialContent(60, "", 100), FILE, 60, 60),  # the sum decides in the end
        (PartialContent(60, '"e"', 100), BARE, 60, 60),
        (PartialContent(60, "", 100), BARE, 60, 0),  # nobody could tell another content
        (PartialContent(100, '"e"', 100), FILE, 100, 100),
    ],
)
def test_from_which_byte_to_go_on(
    kept: PartialContent, file: RemoteFile, part_bytes: int, offset: int
) -> None:
    assert resume_offset(kept, file, part_bytes) == offset


@pytest.mark.parametrize(
    ("kept", "file", "part_bytes", "offset", "end"),
    [
        (PartialContent(60, '"e"', 100), FILE, 80, 60, 80),
        (PartialContent(0, '"e"', 100), FILE, 100, 0, 100),
        (PartialContent(60, '"e"', 100), FILE, 60, 60, 60),
        (PartialContent(60, '"e"', 100), FILE, 101, 60, 60),  # more than there are
        (PartialContent(60, '"e"', 100), RemoteFile.listed("a", None, "s", None, "http://h/a"), 101, 60, 60),
        (
            PartialContent(60, '"e"', None),
            RemoteFile.listed("a", None, "s", None, "http://h/a"),
            101,
            60,
            101,
        ),
        (PartialContent(60, '"e"', 100), BARE, 80, 60, 60),  # nothing would tell
        (PartialContent(60, '"e"', 100), FILE, 40, 0, 0),  # not what was made durable
    ],
)
def test_up_to_where_written_bytes_are_believed(
    kept: PartialContent, file: RemoteFile, part_bytes: int, offset: int, end: int
) -> None:
    assert written_end(kept, file, part_bytes, offset) == end


KEPT = PartialContent(60, '"e"', 100)


@pytest.mark.parametrize(
    ("given", "kept", "file", "expected"),
    [
        (answer(content_length="100"), PartialContent(), FILE, 100),
        (answer(), PartialContent(), FILE, None),  # chunked
        (answer(content_length="100"), KEPT, FILE, 100),  # no ranges there, or another content
        (answer(206, content_range="bytes 60-99/100", etag='"e"'), KEPT, FILE, 100),
        (answer(206, content_range="bytes 60-99/*", etag='"e"'), KEPT, BARE, None),
        (answer(206, content_range="bytes 60-99/100"), KEPT, FILE, 100),  # the sum tells in the end
        (answer(206, content_range="bytes 60-99/100"), KEPT, BARE, "anew"),  # nothing else would tell
        (answer(206, content_range="bytes 60-99/100", etag='W/"e"'), KEPT, BARE, "anew"),
        (answer(206, content_range="bytes 59-99/100"), KEPT, FILE, "anew"),
        (answer(206), KEPT, FILE, "anew"),
        (answer(206, content_range=f"bytes 60-99/{'9' * 5000}"), KEPT, FILE, "anew"),
        (answer(206, content_range=f"bytes {'6' * 5000}-99/100"), KEPT, FILE, "anew"),
        (answer(206, content_range="bytes 60-99/100", etag='"f"'), KEPT, FILE, "anew"),
        (answer(206, content_range="bytes 60-119/120", etag='"e"'), KEPT, BARE, "anew"),
        (answer(content_length="99"), PartialContent(), FILE, "length"),
        (answer(content_length="99"), PartialContent(), BARE, 99),
        (answer(content_encoding="gzip"), PartialContent(), FILE, "encoded"),
        (answer(content_encoding="identity", content_length="100"), PartialContent(), FILE, 100),
    ],
)
def test_whether_an_answer_is_what_was_asked_for(
    given: Answer, kept: PartialContent, file: RemoteFile, expected: int | str | None
) -> None:
    if not isinstance(expected, str):
        assert judge(given, kept, file) == expected
    else:
        with pytest.raises(FetchFailed) as failed:
            judge(given, kept, file)
        assert failed.value.kind == expected


def test_only_a_strong_tag_or_else_a_date_may_guard_a_range() -> None:
    assert answer(etag='"e"', last_modified="then").validator == '"e"'
    assert answer(etag='W/"e"', last_modified="then").validator == ""
    assert answer(last_modified="then").validator == "then"


# Rates


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_bandwidth_is_one_for_all_and_a_seconds_worth_comes_at_once() -> None:
    clock = Clock()
    bucket = Bandwidth(100.0, clock)
    clock.now += 10  # however long nothing was wanted
    assert bucket.take(100) == 0.0
    assert bucket.take(50) == pytest.approx(0.5)
    assert bucket.take(50) == pytest.approx(1.0)
    clock.now += 1
    assert bucket.take(100) == pytest.approx(1.0)
    assert Bandwidth(None, clock).take(10**9) == 0.0


@pytest.mark.parametrize(
    ("reads", "slow"),
    [
        ([(1.0, 1)] * 9, False),  # not a window yet
        ([(1.0, 1)] * 10, True),
        ([(1.0, 100)] * 50, False),
        ([(1.0, 1000)] * 50 + [(1.0, 1)] * 9, False),
        ([(1.0, 1000)] * 55 + [(1.0, 1)] * 15, True),  # fast before is no excuse
        ([(0.0, 1)] * 100, False),  # our own slowness is none of the server's
        ([(30.0, 5)], True),
    ],
)
def test_whether_a_server_is_too_slow(reads: list[tuple[float, int]], slow: bool) -> None:
    watch = RateWatch(least=50, window_s=10)
    assert any(watch.add(waited, size) for waited, size in reads) is slow


# Names


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../../b",
        "a//b",
        "./a",
        "a/.",
        "a\nb",
        "a\0b",
        "x" * 256,
        "a/" * 600 + "b",
        "\udc80",
    ],
)
def test_a_path_that_could_lie_elsewhere_is_refused(path: str) -> None:
    assert unsafe(path)


@given(st.text(max_size=40))
def test_a_path_that_is_not_refused_stays_inside(path: str) -> None:
    if not unsafe(path):
        from pathlib import Path

        root = Path("/landing")
        assert root in inside(root, path).parents


def test_files_that_cannot_lie_beside_each_other_are_found() -> None:
    assert clashes(["a", "b/c", "b/d"]) == {}
    assert set(clashes(["a", "a", "b", "b/c"])) == {"a", "b"}


def test_a_url_is_shown_without_its_secrets() -> None:
    assert shown("https://me:pw@h:8/a/b?Signature=x#y") == "https://h:8/a/b"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("https://h/a/b/one.parquet\nhttps://h/a/b/c/two.parquet", ["one.parquet", "c/two.parquet"]),
        ("https://h/x.parquet", ["x.parquet"]),
        ("https://h/x.parquet\nhttps://i:8/x.parquet", ["h/x.parquet", "i_8/x.parquet"]),
        ("# all\n\nhttps://u:p@h/a%20b.parquet?token=1 " + "AB" * 32 + "\r\n", ["a b.parquet"]),
    ],
)
def test_urls_get_the_shortest_names_that_tell_them_apart(text: str, paths: list[str]) -> None:
    assert [file.path for file in read_urls(text, "list.txt")] == paths


def test_a_sum_in_the_list_is_the_files() -> None:
    assert read_urls("http://h/x " + "AB" * 32, "l")[0].sha256 == "ab" * 32


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("", "list.txt", "names no URL"),
        ("http://h/a\nftp://h/b", "list.txt:2", "no http"),
        ("http://h/a xyz", "list.txt:1", "no sha256"),
        ("http://h/a " + "a" * 64 + " b", "list.txt:1", "3 words"),
        ("http://h/a/", "list.txt:1", "names no file"),
        ("http://h", "list.txt:1", "names no file"),
        ("http://h/d/a\n\nhttp://h/d/a?v=2", "list.txt:3", "line 1"),
        ("http://h/d/a\nhttp://h/d/%2e%2e/%2e%2e/b", "list.txt:2", "leaves its root"),
        ("http://[h/a", "list.txt:1", "no URL"),
        ("http://h/a\nhttp://h/a/b", "list.txt:1", "as a file and as a folder"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(text: str, line: str, fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_urls(text, "list.txt")
    assert str(error.value).startswith(line) and fault in str(error.value)


# The hub


def test_a_repositorys_addresses() -> None:
    data = HubRepo("org/d", endpoint="https://h")
    assert data.file_url("c0", "a b/c#.parquet") == "https://h/datasets/org/d/resolve/c0/a%20b/c%23.parquet"
    assert HubRepo("org/m", "model", "https://h").page == "https://h/org/m"
    assert endpoint_of(None, {"HF_ENDPOINT": "https://mirror/"}) == "https://mirror"
    assert endpoint_of("https://own", {"HF_ENDPOINT": "https://mirror/"}) == "https://own"
    assert is_commit("a" * 40) and not is_commit("main")


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("https://H/x") == origin("https://h:443/y?z") != origin("http://h/x")
    assert origin("https://h.evil/x") != origin("https://h/x")


@pytest.mark.parametrize(
    ("status", "code", "token", "kind", "word"),
    [
        (403, "GatedRepo", True, "gated", "visit https://h/datasets/org/d"),
        (401, "GatedRepo", False, "gated", "token_file"),
        (401, "RepoNotFound", False, "unauthorized", "private"),
        (401, "", True, "unauthorized", "does not accept the token"),
        (404, "RevisionNotFound", True, "missing", "dataset.source.revision"),
        (404, "EntryNotFound", True, "missing", "not in"),
        (403, "", True, "forbidden", "visit"),
        (404, "", False, "missing", "does not have it"),
        (400, "", False, "refused", "400"),
    ],
)
def test_a_hubs_refusal_says_what_to_do(status: int, code: str, token: bool, kind: str, word: str) -> None:
    found, sentence = explain(status, code, HubRepo("org/d", endpoint="https://h"), token=token)
    assert found == kind and word in sentence


def test_the_token_comes_from_file_credential_or_environment(tmp_path: Any) -> None:
    file, credentials = tmp_path / "t", tmp_path / "cred"
    credentials.mkdir()
    file.write_text(" from-file\n")
    (credentials / "hub-token").write_text("from-credential")
    environ = {"HF_TOKEN": "from-environment", "CREDENTIALS_DIRECTORY": str(credentials)}
    assert hub_token(str(file), environ) == "from-file"
    assert hub_token(None, environ) == "from-credential"
    assert hub_token(None, {"HF_TOKEN": "from-environment"}) == "from-environment"
    assert hub_token(None, {"HF_TOKEN": " "}) is None
    for bad in ("", "two words", "\N{SNOWMAN}", "an-escape\x1b"):
        file.write_text(bad)
        with pytest.raises(UnavailableError):
            hub_token(str(file), {})
    with pytest.raises(UnavailableError, match="missing"):
        hub_token(str(tmp_path / "missing"), {})
