"""A file that lies elsewhere: its path in the dataset, where to get it, and what it must hash to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from stoker.config.origins import without_secrets

_NAME_BYTES, _PATH_BYTES = 255, 1024
# Of the parameters of signed addresses: S3, Google, CloudFront, Azure, and the plain ones.
_SIGNATURE = re.compile(
    r"(?i:X-(Amz|Goog)-.*|GoogleAccessId|AWSAccessKeyId|Signature|Expires|Policy|Key-Pair-Id"
    r"|s(ig|e|p|v|r|t|pr|ks|ke|kt|koid|ktid|kv)|token)\Z"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class RemoteFile:
    """One file of a source that is fetched.

    `size` in bytes is None where only the server knows it. `sha256` is of the content, `git` is the hex name
    that git gives a blob of that content (sha1 over "blob <size>\\0" and the bytes); both None where the
    source has no sum. `landed` is the sha256 of what was put into the landing for it before; None where that
    is not known.
    """

    path: str
    url: str
    size: int | None = None
    sha256: str | None = None
    git: str | None = None
    revision: str = ""
    landed: str | None = None

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RemoteFile:
        """What to_fields() gave; KeyError, TypeError or ValueError where a field is missing or wrong."""
        size = fields.get("size")
        return cls(
            path=str(fields["path"]),
            url=str(fields["url"]),
            size=None if size is None else int(size),
            sha256=_word(fields.get("sha256")),
            git=_word(fields.get("git")),
            revision=str(fields.get("revision") or ""),
            landed=_word(fields.get("landed")),
        )

    def to_fields(self) -> dict[str, Any]:
        """For a task or a message."""
        return asdict(self)

    @property
    def identity(self) -> str:
        """What makes two listings of one path speak of the same content; empty where nothing does."""
        return self.sha256 or self.git or ""


def unsafe(path: str) -> str:
    """Why a path that somebody else wrote cannot be a place below the landing; empty when it can."""
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
    """A path that somebody else wrote, for a terminal: what would steer it stands there as its number."""
    text = path.encode(errors="backslashreplace").decode()
    return _STEERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def clashes(paths: list[str]) -> dict[str, str]:
    """The paths that cannot lie beside the others, with the reason: listed twice, or a file and a folder."""
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
    """A URL as it may stand in a log: without user, password, query and fragment, which may be secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:  # it may hold a password all the same
        return without_secrets(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def lasting(url: str) -> str:
    """What of a URL names the content: a renewed signature or another password makes it no other one."""
    parts = urlsplit(url)
    kept = [each for each in parts.query.split("&") if not _SIGNATURE.match(each.partition("=")[0])]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="&".join(kept)))


def _word(value: Any) -> str | None:
    return None if value is None else str(value)
