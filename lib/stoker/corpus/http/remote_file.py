"""A remote file: its path in the dataset, its address, its expected hash; the list of a `urls` source.

That list has lines of "URL [sha256]"; empty lines and lines after # are skipped.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit, urlunsplit

from stoker.config.origins import without_secrets
from stoker.corpus.http.hub import HubRepo
from stoker.store.errors import ConfigError

_NAME_BYTES, _PATH_BYTES = 255, 1024
MOST_LIST_BYTES = 64 << 20
_SHOWN_FAULTS = 20
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
# Parameters of signed addresses: S3, Google, CloudFront, Azure, and common names.
_SIGNATURE = re.compile(
    r"(?i:X-(Amz|Goog)-.*|GoogleAccessId|AWSAccessKeyId|Signature|Expires|Policy|Key-Pair-Id"
    r"|s(ig|e|p|v|r|t|pr|ks|ke|kt|koid|ktid|kv)|token)\Z"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source that is fetched. `size` in bytes is None where only the server knows it.

    `identity` is equal in two listings of one path when they name the same content: "sha256:<hex>" of the
    content, or "git:<hex>", the name that git gives a blob of that content (sha1 over "blob <size>\\0" and
    the bytes), where the listing has a sum, else "url:<hex>". `url` is empty where path and commit give it.
    `revision` is the commit it is requested at, and `landed` the sha256 of the bytes put into the landing for
    it before; None where that is not known.
    """

    path: str
    size: int | None
    identity: str
    url: str = ""
    revision: str = ""
    landed: str | None = None

    @classmethod
    def listed(
        cls, path: str, size: int | None, sha256: str | None, git: str | None, url: str = ""
    ) -> RemoteFile:
        """Returns the file of a listing's entry."""
        if sha256 is not None:
            return cls(path, size, f"sha256:{sha256}", url)
        if git is not None:
            return cls(path, size, f"git:{git}", url)
        return cls(path, size, "url:" + hashlib.sha256(lasting(url).encode()).hexdigest(), url)

    def at(self, repo: HubRepo | None, revision: str, landed: str | None = None) -> RemoteFile:
        """Returns the request for the file, with its address at that revision."""
        url = self.url or (repo.file_url(revision, self.path) if repo else "")
        return replace(self, url=url, revision=revision, landed=landed)

    @property
    def sha256(self) -> str | None:
        """The expected sha256 of its content, None if unknown."""
        return self._digest("sha256:")

    @property
    def git(self) -> str | None:
        """The expected git blob name of its content, None if unknown."""
        return self._digest("git:")

    @property
    def sum(self) -> str:
        """The sha256 or git sum; empty where the source has none."""
        return self.sha256 or self.git or ""

    def _digest(self, kind: str) -> str | None:
        return self.identity.removeprefix(kind) if self.identity.startswith(kind) else None


def unsafe(path: str) -> str:
    """Returns why a foreign path cannot be a place below the landing; empty when it can."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if not path or path.startswith("/"):
        return "it is no relative path"
    if _CONTROL.search(path):
        return "it holds control characters"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "it leaves its root, or would if read carelessly"
    if len(encoded) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in parts):
        return f"it is longer than a file's name may be ({_NAME_BYTES} bytes a part, {_PATH_BYTES} in all)"
    return ""


def printable(path: str) -> str:
    """Returns a foreign path for a terminal, with control characters as their numbers."""
    text = path.encode(errors="backslashreplace").decode()
    return _STEERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def clashes(paths: list[str]) -> dict[str, str]:
    """Returns the paths that clash with others, with the reason: duplicate, or a file and a folder."""
    files: set[str] = set()
    folders = {path[:at] for path in paths for at in range(len(path)) if path[at] == "/"}
    found = {}
    for path in paths:
        if path in files:
            found[path] = "it is listed twice"
        elif path in folders:
            found[path] = "it is listed as a file and as a folder"
        files.add(path)
    return found


def shown(url: str) -> str:
    """Returns a URL for logs: without user, password, query and fragment, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an unparsable URL may hold a password too
        return without_secrets(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def lasting(url: str) -> str:
    """Returns the parts of a URL that name the content: not its signature and password, which are renewed."""
    parts = urlsplit(url)
    kept = [each for each in parts.query.split("&") if not _SIGNATURE.match(each.partition("=")[0])]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="&".join(kept)))


# The list of a `urls` source


def read_urls(text: str, name: str) -> list[RemoteFile]:
    """Returns the listed files in order; ConfigError names each wrong line by `name` and number.

    A file's path is its URL, percent-decoded, without the parts that all URLs share: first the host, then
    leading folders. So equal names on two hosts differ, and a list from one folder gives plain names.
    """
    faults, good = [], []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):  # some editors write a mark
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if fault := _fault(words):
            faults.append(f"{name}:{number}: {fault}")
        else:
            good.append((number, words[0], words[1].lower() if len(words) > 1 else None))
    if not (faults or good):
        faults.append(f"{name}: names no URL; write one a line, each with its sha256 if you have it")
    places = _without_shared_parts([_place(url) for _, url, _ in good])
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
    if faults:
        more = f"\nand {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise ConfigError("\n".join(faults[:_SHOWN_FAULTS]) + more)
    return files


def _fault(words: list[str]) -> str:
    if len(words) > 2:
        return f"has {len(words)} words; a line is a URL and at most its sha256"
    address = without_secrets(words[0])
    try:
        parts = urlsplit(words[0])
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{address!r} is no URL: {error}"
    if parts.scheme not in ("http", "https") or not host:
        return f"{address!r} is no http:// or https:// URL"
    if parts.path in ("", "/") or parts.path.endswith("/"):
        return f"{address} names no file"
    if len(words) == 2 and not _SHA256.fullmatch(words[1]):
        return f"its second word, of {len(words[1])} characters, is no sha256: that has 64 hexadecimal digits"
    return ""


def _place(url: str) -> list[str]:
    parts = urlsplit(url)
    return [parts.netloc.rpartition("@")[2].replace(":", "_"), *unquote(parts.path).lstrip("/").split("/")]


def _without_shared_parts(places: list[list[str]]) -> list[str]:
    shared = 0
    while places and all(len(place) > shared + 1 and place[shared] == places[0][shared] for place in places):
        shared += 1
    return ["/".join(place[shared:]) for place in places]
