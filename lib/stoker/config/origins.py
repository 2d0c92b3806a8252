"""Checks the keys that name the origin of a source, by their text alone, without network or disk."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_REPO = re.compile(r"([A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]*", re.ASCII)
_PAGE = re.compile(r"(https?://[^/]+/)?(?:(dataset|space|model)s/)?([^/]+/[^/?#]+)")
# Text that git allows in no branch or tag (git-check-ref-format).
_NO_REVISION = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|^[/.-]|[/.]$|//")
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{16,}")


def repo_fault(repo: str) -> str:
    """Returns the error text for a repository's name on a hub, "" for a valid name."""
    if _REPO.fullmatch(repo):
        return ""
    hint, page = "owner/name", _PAGE.match(repo)
    if page and (page[1] or page[2]):
        hint = page[3] + (f", and repo_type: {page[2]}" if page[2] else "")
        hint += "; another hub than the public one is dataset.source.endpoint" if page[1] else ""
    return f"{without_secrets(repo)!r} is no repository's name; write {hint}"


def revision_fault(revision: str) -> str:
    """Returns the error text for a branch, tag or commit, "" for a valid one."""
    if not _NO_REVISION.search(revision):
        return ""
    return f"{revision!r} can be no branch, tag or commit; write one, as main"


def endpoint_fault(endpoint: str) -> str:
    """Returns the error text, without passwords, for a hub's address, "" for a valid one."""
    shown = without_secrets(endpoint)
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{shown!r} is no address: {error}; write one like https://huggingface.co"
    if parts.scheme not in ("http", "https") or not host:
        return f"{shown!r} is no http:// or https:// address; write one like https://huggingface.co"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "holds a user, a query or a fragment; write the address alone, the token goes into token_file"
    return ""


def token_file_fault(name: str) -> str:
    """Returns the error text, without the token, where the file name is a token itself, else ""."""
    if not _TOKEN.fullmatch(name):
        return ""
    return "is a token, not a file; write it into a file of mode 0600, name that here, and renew the token"


def without_secrets(address: str) -> str:
    """Returns an address, valid or not, without the parts that may be a password or a signature."""
    text = re.split(r"[?#]", address, maxsplit=1)[0]
    head, at, rest = text.rpartition("@")
    if not at:
        return text
    scheme, slashes, _ = head.partition("://")
    return (scheme + slashes if slashes else "") + rest


def glob_fault(pattern: str) -> str:
    """Returns the error text for a glob, "" for a valid one."""
    try:
        compile_glob(pattern)
    except re.error as error:
        return f"{pattern!r} is no glob: {error}"
    return ""


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Compiles a glob over relative paths: `*` and `?` match within a name, `**` matches across folders.

    A pattern without a slash matches a file's name at any depth, as in a .gitignore. Raises re.error.
    """
    text = pattern.lstrip("/")
    out = ["" if "/" in text else "(?:.*/)?"]
    at = 0
    while at < len(text):
        if text.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif text.startswith("**", at):
            out.append(".*")
            at += 2
        elif text[at] == "[" and (end := text.find("]", at + 2)) > 0:
            inner = text[at + 1 : end].replace("\\", r"\\")
            out.append(f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
            at = end + 1
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(text[at]) or re.escape(text[at]))
            at += 1
    return re.compile("".join(out), re.DOTALL)
