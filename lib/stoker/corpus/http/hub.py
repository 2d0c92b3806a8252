"""A repository on a hub: its addresses, its access token, and the operator's advice for a refusal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from stoker.config.origins import endpoint_fault
from stoker.store.errors import ConfigError, UnavailableError
from stoker.systemd.credentials import credential, one_word, read_secret

DEFAULT_ENDPOINT = "https://huggingface.co"
CREDENTIAL = "hub-token"
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_FOLDERS = {"dataset": "datasets/", "space": "spaces/", "model": ""}
_OPTIONS = {"repo": "REPO", "revision": "--revision", "token_file": "--token-file"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class HubRepo:
    """One repository; `endpoint` without a slash at its end.

    `commanded`: a command names it, and errors name the command's options instead of dataset.source's keys.
    """

    repo: str
    repo_type: str = "dataset"
    endpoint: str = DEFAULT_ENDPOINT
    commanded: bool = False

    def key(self, name: str) -> str:
        """Returns the place where the operator names the repository, its revision or the token's file."""
        return _OPTIONS[name] if self.commanded else f"dataset.source.{name}"

    @property
    def page(self) -> str:
        """The address of the repository's page for people."""
        return f"{self.endpoint}/{_FOLDERS[self.repo_type]}{self.repo}"

    def file_url(self, commit: str, path: str) -> str:
        """Returns the address of a file at a commit; its answer is usually a redirect."""
        return f"{self.page}/resolve/{quote(commit, safe='')}/{quote(path)}"


def endpoint_of(configured: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the hub's address: dataset.source.endpoint, else HF_ENDPOINT, else the public hub.

    ConfigError where HF_ENDPOINT is no address, or holds a password.
    """
    outside = environ.get("HF_ENDPOINT", "").strip()
    if configured is None and outside and (fault := endpoint_fault(outside)):
        raise ConfigError(f"HF_ENDPOINT: {fault}")
    return (configured or outside or DEFAULT_ENDPOINT).rstrip("/")


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit's own name, which never changes its meaning."""
    return _COMMIT.fullmatch(revision) is not None


def origin(url: str) -> tuple[str, str, int | None]:
    """Returns (scheme, host, port): a token for one origin is never sent to another."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


def hub_token(token_file: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the token of dataset.source.token_file, the systemd credential hub-token, or HF_TOKEN.

    The first that is set counts; the credential also where root alone may read the file, of which it is a
    copy. Never put it into a message, a log or an argument list. UnavailableError when the named file has
    none.
    """
    file = None if token_file is None else Path(token_file)
    if file is None or not os.access(file, os.R_OK):
        file = credential(CREDENTIAL, environ) or file
    what, text = "the hub's access token", environ.get("HF_TOKEN", "")
    if file is not None:
        return read_secret(file, what, UnavailableError)
    return one_word(text, "HF_TOKEN", what, UnavailableError) if text.strip() else None


def explain(
    status: int, code: str, repo: HubRepo, *, token: bool, revision: str = "", pinned: bool = False
) -> tuple[str, str]:
    """Returns (kind, sentence) of a hub's refusal; `code` is its X-Error-Code, `token`: a token was sent.

    `revision` is the requested revision, `pinned` whether it is a commit that existed before. Kinds: gated,
    unauthorized, forbidden, missing, vanished (the pinned commit), refused.
    """
    with_token = "" if token else f"; no token was sent: set {repo.key('token_file')} or HF_TOKEN"
    if code == "GatedRepo":
        return "gated", (
            f"{repo.repo} is gated: visit {repo.page}, accept its conditions, and use a token of that "
            f"account{with_token}"
        )
    if code == "RevisionNotFound":
        return _no_revision(repo, revision, pinned=pinned)
    if code == "EntryNotFound":
        return "missing", f"the file is not in {repo.page} at this revision"
    if status == 401 and token:
        return "unauthorized", (
            f"{repo.endpoint} does not accept the token, or {repo.repo} does not exist for it; "
            f"visit {repo.page} and renew the token"
        )
    if status == 401 or code == "RepoNotFound":
        return "unauthorized" if status == 401 else "missing", (
            f"{repo.page} does not exist or is private; correct {repo.key('repo')}{with_token}"
        )
    if status == 403:
        return "forbidden", (
            f"{repo.endpoint} forbids it for this account: visit {repo.page} and see what it asks{with_token}"
        )
    if status in (404, 410):
        return "missing", f"{repo.page} does not have it"
    return "refused", f"{repo.endpoint} answers {status}"


def _no_revision(repo: HubRepo, revision: str, *, pinned: bool) -> tuple[str, str]:
    if pinned:
        name = f"the pinned commit {revision[:12]}" if revision else "the pinned commit"
        return "vanished", (
            f"{name} is not in {repo.page} any more, whose history was rewritten; "
            + ("give the command again" if repo.commanded else "set dataset.source.follow: new_commits")
            + " to continue with what its revision means now"
        )
    short = re.fullmatch(r"[0-9a-f]{4,39}", revision)
    return "missing", (
        f"{repo.page} has no revision {revision!r}; correct {repo.key('revision')}"
        + ("; a commit's name has all its 40 digits" if short else "")
    )
