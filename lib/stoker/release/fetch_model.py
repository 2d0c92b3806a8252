"""`stoker fetch-model`: brings a model from a hub into a directory, proven, without pickles and code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from stoker.cli.options import PATH, TEXT, one_line, plural
from stoker.cli.output import new_directory
from stoker.config.units import format_bytes
from stoker.corpus.fetch.landing import PARTS, Landing
from stoker.corpus.fetch.transfer import Bandwidth, FileFetch, TransferConfig
from stoker.corpus.http.client import HttpClient, HttpConfig
from stoker.corpus.http.remote_file import RemoteFile, clashes, printable, unsafe
from stoker.corpus.source.listing import Row
from stoker.kit.loop import Backoff
from stoker.release.hub import FIRST_PAUSE_S, LONGEST_PAUSE_S, ModelHub, persist, token_file_option
from stoker.store.checksums import SUMS, checksums_of, read_checksums, write_checksums
from stoker.store.errors import DataError
from stoker.store.files import remove_tree

SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".md")
NAMES = (SUMS, "tokenizer.model")
CONNECT_S, READ_S = 20.0, 30.0
MIN_RATE = 20 * 2**10  # bytes a second over READ_S; a slower server is asked again


@click.command("fetch-model", epilog="Example: stoker fetch-model my-org/fineweb-1b fineweb-1b")
@click.argument("repo", type=TEXT)
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--revision", default="main", type=TEXT, help="A branch, a tag or a commit.")
@token_file_option
def fetch_model(repo: str, directory: Path, revision: str, token_file: Path | None) -> None:
    """Fetch the model REPO of the hub into the new directory DIR.

    Only safetensors, JSON and text are fetched: never a pickle, never code. Each file is proven by the hub's
    sum, all of them by SHA256SUMS where the repository has one; then DIR gets its name. A command that was
    killed is given again and goes on where it stopped. DIR needs no network afterwards.

    Exit codes: 64 DIR exists; 65 the files are not what the sums say; 69 the hub refuses, or stays away;
    74 no room.
    """
    hub = ModelHub(repo, token_file)
    commit = persist(lambda: hub.commit(revision), f"{repo} is not fetched")  # once: a branch may move
    rows = persist(lambda: list(hub.files(commit)), f"{repo} is not fetched")
    files = [RemoteFile.listed(*row).at(hub.hub, commit) for row in select(rows)]
    size = sum(file.size or 0 for file in files)
    with new_directory(directory, size, resumes=True) as place:
        _fetch_all(hub, place, files)
        proof = _prove(place, hub.hub.page)
    what = f"{plural(len(files), 'file')}, {format_bytes(size)}, of {hub.hub.page} at {commit[:12]}"
    click.echo(one_line(f"{directory}: {what}; {proof}"))


def select(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of a listing that are fetched; DataError for names that are no files' here."""
    good = [row for row in rows if _is_fetched(row[0])]
    paths = [row[0] for row in good]
    faults = {path: reason for path in paths if (reason := unsafe(path))} or clashes(paths)
    for path, reason in faults.items():
        raise DataError(f"{printable(path)}: {reason}; nothing of the repository is fetched")
    if not any(path.endswith(".safetensors") for path in paths):
        raise DataError("the repository has no safetensors; pickles are never fetched")
    return good


def _is_fetched(path: str) -> bool:
    is_hidden = any(part.startswith(".") and part != ".." for part in path.split("/"))
    return not is_hidden and (path.endswith(SUFFIXES) or path.rpartition("/")[2] in NAMES)


def _fetch_all(hub: ModelHub, place: Path, files: Sequence[RemoteFile]) -> None:
    landing = Landing(place, hub.hub.repo, expected=False)
    landing.sweep()
    wanted = {file.path for file in files}
    for left in [each for each in place.rglob("*") if each.is_symlink() or each.is_file()]:
        path = str(left.relative_to(place))
        if path not in wanted and not path.startswith(f"{PARTS}/"):  # of another commit
            landing.remove(path)
    terms = TransferConfig(landing, Bandwidth(None), lambda *_, **__: None, MIN_RATE, READ_S, 0, 0, 0)
    caller = HttpClient(HttpConfig(CONNECT_S, READ_S, hub.hub, hub.token))
    for file in files:
        click.echo(one_line(f"{file.path}, {format_bytes(file.size or 0)}"), err=True)
        transfer = FileFetch(file, terms, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
        persist(partial(transfer.attempt, caller), f"{hub.hub.repo} is not fetched", transfer)
    remove_tree(place / PARTS)


def _prove(place: Path, page: str) -> str:
    """Returns what proves the files; DataError where SHA256SUMS says otherwise."""
    for file in sorted(place.glob("*config.json")):
        if b'"auto_map"' in file.read_bytes():
            click.echo(f"{file.name} names code (auto_map): it is not fetched and never run", err=True)
    found = checksums_of(place)
    try:
        listed = {name: digest for name, digest in read_checksums(place).items() if _is_fetched(name)}
    except FileNotFoundError:
        listed = {}
    if listed and (differing := sorted(name for name, _ in found.items() ^ listed.items())):
        raise DataError(f"{page} is not what its {SUMS} says, first in {differing[0]}; name another revision")
    write_checksums(place, found)  # what serve and verify ask for, also where the repository has none
    return f"all have the sums of its {SUMS}" if listed else f"each has the hub's sum; it had no {SUMS}"
