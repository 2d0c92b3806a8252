"""Lists of URLs, a hub's refusals and its token: what an operator reads, and what is never told."""

from __future__ import annotations

import pytest

from stoker.corpus.http.client import advice, client_does_not_start
from stoker.corpus.http.hub import HubRepo, endpoint_of, explain, hub_token
from stoker.corpus.http.remote_file import lasting, read_urls, shown
from stoker.corpus.http.retry_rules import LONGEST_RETRY_AFTER_S, retry_after
from stoker.store.errors import ConfigError, UnavailableError

HUB = HubRepo("org/d", endpoint="https://h")
COMMIT = "9a40" * 10


@pytest.mark.parametrize(
    "line",
    [
        "http://user:sEcret@h:99999/x",
        "http://user:sEcret@[::1/x",
        "ftp://user:sEcret@h/x?key=sEcret",
        "user:sEcret@h/x",
        "http://user:sEcret@h/?key=sEcret",
        "http://h/x sEcret",
        "http://h/x a sEcret",
    ],
)
def test_a_wrong_line_never_repeats_a_password_or_a_signature(line: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_urls(line, "list.txt")
    assert str(error.value).startswith("list.txt:1: ") and "sEcret" not in str(error.value)


def test_a_mark_that_editors_put_first_is_no_part_of_the_first_url() -> None:
    (file,) = read_urls("\ufeffhttp://h/d/a.bin\r\n", "list.txt")
    assert (file.path, file.url) == ("a.bin", "http://h/d/a.bin")


def test_what_is_no_url_is_shown_without_its_password_too() -> None:
    assert shown("http://user:sEcret@[::1/x?key=sEcret") == "http://[::1/x"


@pytest.mark.parametrize(
    "signed",
    [
        "https://h/d/a.bin?X-Amz-Date=2&X-Amz-Signature=b&X-Amz-Expires=60",
        "https://h/d/a.bin?Expires=2&Signature=b&Key-Pair-Id=c",
        "https://h/d/a.bin?sv=2&se=3&sr=b&sp=r&sig=b",
        "https://user:other@h/d/a.bin",
        "https://h/d/a.bin",
    ],
)
def test_a_renewed_signature_makes_no_other_content(signed: str) -> None:
    (first,) = read_urls("https://user:pw@h/d/a.bin?Signature=a&token=x", "list.txt")
    (again,) = read_urls(signed, "list.txt")
    assert lasting(first.url) == lasting(again.url) == "https://h/d/a.bin"


def test_any_other_part_of_an_address_does() -> None:
    assert (
        lasting("https://h/a?version=1&sig=a") == "https://h/a?version=1" != lasting("https://h/a?version=2")
    )
    assert lasting("http://h/a") != lasting("https://h/a") != lasting("https://h:444/a")


def test_a_hub_named_in_the_environment_is_an_address_without_a_password() -> None:
    assert endpoint_of(None, {"HF_ENDPOINT": " https://mirror/ "}) == "https://mirror"
    with pytest.raises(ConfigError, match="HF_ENDPOINT: 'mirror' is no http"):
        endpoint_of(None, {"HF_ENDPOINT": "mirror"})
    with pytest.raises(ConfigError) as error:
        endpoint_of(None, {"HF_ENDPOINT": "https://user:sEcret@mirror"})
    assert "sEcret" not in str(error.value)
    assert endpoint_of("https://own", {"HF_ENDPOINT": "mirror"}) == "https://own"


@pytest.mark.parametrize("token", ["hf_a\nhf_b", "hf_a b", "hf_\xe9"])
def test_a_token_that_is_not_one_word_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(UnavailableError) as error:
        hub_token(None, {"HF_TOKEN": token})
    assert "HF_TOKEN" in str(error.value) and "hf_" not in str(error.value)


def test_a_revision_that_is_not_there_is_named_and_a_short_commit_told_as_one() -> None:
    kind, reason = explain(404, "RevisionNotFound", HUB, token=True, revision="mian")
    assert kind == "missing" and "'mian'" in reason and "40 digits" not in reason
    kind, reason = explain(404, "RevisionNotFound", HUB, token=True, revision=COMMIT[:7])
    assert kind == "missing" and "all its 40 digits" in reason


@pytest.mark.parametrize("revision", ["", COMMIT])
def test_a_pinned_commit_that_vanished_is_no_mistake_in_the_configuration(revision: str) -> None:
    kind, reason = explain(404, "RevisionNotFound", HUB, token=True, revision=revision, pinned=True)
    assert kind == "vanished" and "follow: new_commits" in reason and "correct" not in reason
    assert revision[:12] in reason


@pytest.mark.parametrize(
    ("environ", "url", "told"),
    [
        (
            {"http_proxy": "http://user:sEcret@proxy:3128"},
            "http://h/a",
            " (through the proxy http://proxy:3128)",
        ),
        ({"http_proxy": "user:sEcret@proxy:3128"}, "http://h/a", " (through the proxy http://proxy:3128)"),
        ({"all_proxy": "http://proxy"}, "https://h/a", " (through the proxy http://proxy)"),
        ({"http_proxy": "http://proxy", "no_proxy": "h"}, "http://h/a", ""),
        ({"http_proxy": "http://proxy"}, "https://h/a", ""),
        ({}, "http://h/a", ""),
    ],
)
def test_a_failed_connection_names_the_proxy_that_was_asked(
    environ: dict[str, str], url: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert advice(OSError("Connection refused"), url) == told


def test_a_certificate_that_is_not_believed_says_where_to_look() -> None:
    assert "SSL_CERT_FILE" in advice(OSError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "https://h")


def test_a_client_that_does_not_start_names_the_variables_and_no_command_of_others() -> None:
    error = ImportError("Using SOCKS proxy, but no 'socksio'. Make sure to install httpx using `pip ...`.")
    told = str(client_does_not_start(error))
    assert "SOCKS" in told and "ALL_PROXY" in told and "pip" not in told


NOON, LATER = "Sat, 21 Nov 2026 12:00:00 GMT", "Sat, 21 Nov 2026 12:02:00 GMT"
OURS = 1_795_262_400.0  # noon


@pytest.mark.parametrize("skew_s", [-7200.0, 0.0, 7200.0])
def test_a_date_to_wait_for_is_by_the_servers_clock_where_it_tells_it(skew_s: float) -> None:
    assert retry_after({"retry-after": LATER, "date": NOON}, OURS + skew_s) == 120.0
    assert retry_after({"retry-after": NOON, "date": LATER}, OURS + skew_s) == 0.0


def test_without_the_servers_clock_ours_must_do_and_nonsense_is_no_wait() -> None:
    assert retry_after({"retry-after": LATER}, OURS) == 120.0
    assert retry_after({"retry-after": LATER, "date": "soon"}, OURS) == 120.0
    assert retry_after({"retry-after": "soon", "date": NOON}, OURS) is None
    assert retry_after({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, OURS) == LONGEST_RETRY_AFTER_S
