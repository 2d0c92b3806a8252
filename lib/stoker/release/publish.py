"""`stoker publish`: puts a bundle into a model's repository at a hub, in one commit."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import PATH, TEXT, one_line, plural
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.source.listing import Row
from stoker.release.hub import ModelHub, persist, token_file_option
from stoker.store.checksums import SUMS, prove_checksums
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, Transient, UnavailableError, UsageError
from stoker.store.record import parse_json

_THE_HUBS = {".gitattributes"}  # which the hub itself writes


@click.command(epilog="Example: stoker publish fineweb-1b my-org/fineweb-1b --private")
@click.argument("bundle", type=PATH)
@click.argument("repo", type=TEXT)
@click.option("--private", is_flag=True, help="Make it private; refuse a public one.")
@click.option("--revision", default="main", type=TEXT, help="The branch.")
@click.option("--pr", "as_pr", is_flag=True, help="Propose it as a pull request against main.")
@token_file_option
def publish(  # noqa: PLR0917 - click passes an argument per option
    bundle: Path, repo: str, private: bool, revision: str, as_pr: bool, token_file: Path | None
) -> None:
    """Put the files of BUNDLE into REPO, a model's repository at the hub, in one commit.

    The sums are checked first; BUNDLE must be proven and have a licence. REPO is made where it does not
    exist. Afterwards it holds the files of BUNDLE and no other. A command that was killed or lost the hub's
    answer is given again: there is one commit, or nothing to do.

    Exit codes: 65 the bundle is not fit; 69 the hub refuses, or stays away; 75 the repository was changed
    meanwhile.
    """
    if as_pr and revision != "main":
        raise UsageError("--pr proposes a change of main: leave out --revision")
    if "/" not in repo:  # the hub would make it in the token's namespace, and not find it by this name
        raise UsageError(f"REPO is {repo!r}, without its owner; name OWNER/NAME")
    bundle = bundle.resolve()  # a link may be turned meanwhile
    sums, told = read_bundle(bundle)
    hub = ModelHub(repo, token_file)
    if hub.token is None:
        raise UnavailableError("a commit needs an access token; set --token-file or HF_TOKEN")
    message = f"Step {told.get('step')} of {told.get('run')}"
    work = Publication(hub, bundle, sums, revision, private, as_pr, message)
    click.echo(one_line(persist(work.attempt, f"{repo} is not published")))


def read_bundle(bundle: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns the proven sums of a bundle's files, and its release.json; DataError where it is not fit."""
    if bundle.is_file():
        raise DataError(f"{bundle} is a file; name the directory of a bundle, unpacked")
    try:
        sums, fault = prove_checksums(bundle)
        told = parse_json((bundle / "release.json").read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{bundle} is no bundle: {SUMS} or release.json cannot be read") from error
    if not fault and not (isinstance(told, dict) and told.get("proven") is True):
        fault = "nothing has proven that it loads; pip install 'stoker[hf]' where it is made"
    elif not fault and not told.get("license"):
        fault = "release.json names no licence; give one"
    if fault:
        raise DataError(f"{bundle}: {fault}; make it again with `stoker bundle`")
    return {**sums, SUMS: hash_file(bundle / SUMS).sha256}, told


def changes(
    sums: Mapping[str, str], rows: Iterable[Row], git_name: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """Returns the bundle's files that a listing lacks or has otherwise, and its files that no bundle has.

    `git_name` returns the name that git gives a file of the bundle, which a listing has instead of a sha256.
    """
    there, same = set(), set()
    for path, _, sha256, git, _ in rows:
        there.add(path)
        if path in sums and (sums[path] == sha256 if sha256 else git_name(path) == git):
            same.add(path)
    return sorted(sums.keys() - same), sorted(there - sums.keys() - _THE_HUBS)


@dataclass
class Publication:
    """The way of one bundle into one repository; attempt() may be repeated after any failure."""

    hub: ModelHub
    bundle: Path
    sums: Mapping[str, str]
    revision: str
    private: bool
    as_pr: bool
    message: str
    parent: str = ""  # of the commit that was sent, whose answer may be lost

    def attempt(self) -> str:
        """Returns a sentence once the repository has the bundle. Raises FetchFailed, Transient, DataError."""
        page, head = self.hub.hub.page, self._head()
        for commit in (head, *self._proposals()):
            if not any(self._changes(commit)):
                already = "" if self.parent else " already; nothing to do"
                return f"{page} at {commit[:12]}: the bundle is there{already}"
        if self.parent not in ("", head):
            raise Transient(f"{page} was changed meanwhile; look at it, then give the command again")
        self.parent = head
        return self._commit(*self._changes(head))

    def _head(self) -> str:
        try:
            head = self.hub.commit(self.revision)
        except FetchFailed as failure:
            if failure.status != 404 or self.revision != "main":
                raise
        else:
            with self.hub.asking(self.revision):
                is_open = self.private and not self.hub.api.model_info(self.hub.hub.repo).private
            if is_open:
                page = self.hub.hub.page
                raise UsageError(f"{page} is public; make it private there first, or leave out --private")
            return head
        with self.hub.asking("main"):
            self.hub.api.create_repo(self.hub.hub.repo, private=self.private)
        return self.hub.commit("main")

    def _proposals(self) -> list[str]:
        """Returns the commits of open pull requests with this title, where this is to be one."""
        if not self.as_pr:
            return []
        with self.hub.asking("main"):
            found = self.hub.api.get_repo_discussions(
                self.hub.hub.repo, discussion_type="pull_request", discussion_status="open"
            )
            numbers = [each.num for each in found if each.title == self.message]
        return [self.hub.commit(f"refs/pr/{number}") for number in numbers]

    def _changes(self, commit: str) -> tuple[list[str], list[str]]:
        return changes(self.sums, self.hub.files(commit), self._git_name)

    def _git_name(self, name: str) -> str:
        file = self.bundle / name
        digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
        hash_file(file, also=digest)
        return digest.hexdigest()

    def _commit(self, add: list[str], drop: list[str]) -> str:
        """Commits; DataError where the bundle was changed meanwhile, or the hub then has other files."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        click.echo(f"sending {plural(len(add), 'file')} to {self.hub.hub.page}", err=True)
        files = [CommitOperationAdd(name, self.bundle / name) for name in add]
        for name, file in zip(add, files, strict=True):
            if file.upload_info.sha256.hex() != self.sums[name]:
                raise DataError(f"{name} was changed after its sum was checked; publish the bundle again")
        deletions = [CommitOperationDelete(name, is_folder=False) for name in drop]
        with self.hub.asking(self.revision), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the card's metadata, with a path of this machine
            done = self.hub.api.create_commit(
                self.hub.hub.repo,
                [*files, *deletions],
                commit_message=self.message,
                revision=self.revision,
                create_pr=self.as_pr,
                parent_commit=self.parent,
            )
        if any(self._changes(done.oid)):
            raise DataError(f"{done.commit_url} has other files than {self.bundle.name}; publish it again")
        deleted = f", {len(drop)} deleted" if drop else ""
        return f"{done.pr_url or done.commit_url}: {plural(len(add), 'file')} in one commit{deleted}"
