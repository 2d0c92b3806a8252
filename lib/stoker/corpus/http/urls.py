"""Reads the list of a `urls` source: lines of "URL [sha256]"; empty lines and lines after # are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from stoker.config.origins import without_secrets
from stoker.corpus.http.remote_file import RemoteFile, clashes, unsafe
from stoker.store.errors import ConfigError

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SHOWN_FAULTS = 20
MOST_BYTES = 64 << 20


def read_urls(text: str, name: str) -> list[RemoteFile]:
    """Returns the listed files in order; ConfigError names each wrong line by `name` and number.

    A file's path is its URL, percent-decoded, without the parts that all URLs share: first the host, then
    leading folders. So equal names on two hosts differ, and a list from one folder gives plain names.
    """
    lines = list(_lines(text.removeprefix("\ufeff")))  # the byte order mark that some editors write
    faults = [f"{name}:{number}: {fault}" for number, _, _, fault in lines if fault]
    good = [(number, url, digest) for number, url, digest, fault in lines if not fault]
    places = _shortened([_place(url) for _, url, _ in good])
    numbers: dict[str, int] = {}
    files = []
    for (number, url, digest), path in zip(good, places, strict=True):
        if reason := unsafe(path):
            faults.append(f"{name}:{number}: {path!r} is no name for a file: {reason}")
        elif path in numbers:
            faults.append(f"{name}:{number}: {path} is named by line {numbers[path]} already; remove one")
        else:
            numbers[path] = number
            files.append(RemoteFile.listed(path, None, digest, None, url))
    for path, reason in clashes([file.path for file in files]).items():
        faults.append(f"{name}:{numbers[path]}: {path}: {reason}")
    if not lines:
        faults.append(f"{name}: names no URL; write one a line, each with its sha256 if you have it")
    if faults:
        more = f"\nand {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise ConfigError("\n".join(faults[:_SHOWN_FAULTS]) + more)
    return files


def _lines(text: str) -> Iterator[tuple[int, str, str | None, str]]:
    """Yields (number, URL, sha256, fault) of each line that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        yield number, words[0], words[1].lower() if len(words) > 1 else None, _fault(words)


def _fault(words: list[str]) -> str:
    if len(words) > 2:
        return f"has {len(words)} words; a line is a URL and at most its sha256"
    told = without_secrets(words[0])
    try:
        parts = urlsplit(words[0])
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{told!r} is no URL: {error}"
    if parts.scheme not in ("http", "https") or not host:
        return f"{told!r} is no http:// or https:// URL"
    if parts.path in ("", "/") or parts.path.endswith("/"):
        return f"{told} names no file"
    if len(words) == 2 and not _SHA256.fullmatch(words[1]):
        return f"its second word, of {len(words[1])} characters, is no sha256: that has 64 hexadecimal digits"
    return ""


def _place(url: str) -> list[str]:
    parts = urlsplit(url)
    return [parts.netloc.rpartition("@")[2].replace(":", "_"), *unquote(parts.path).lstrip("/").split("/")]


def _shortened(places: list[list[str]]) -> list[str]:
    shared = 0
    while places and all(len(place) > shared + 1 and place[shared] == places[0][shared] for place in places):
        shared += 1
    return ["/".join(place[shared:]) for place in places]
