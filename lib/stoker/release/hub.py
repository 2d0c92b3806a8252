"""A model's repository at a hub, for the commands: its client, patience with a server, the errors at last."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from stoker.cli.options import PATH, one_line
from stoker.corpus.fetch.transfer import FileFetch
from stoker.corpus.http.hub import HubRepo, endpoint_of, hub_token
from stoker.corpus.http.retry_rules import LOCAL, FetchFailed, next_pause
from stoker.corpus.source.hub_api import HubApi
from stoker.kit.loop import Backoff
from stoker.store.errors import DataError, StokerError, StorageError, UnavailableError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
PATIENCE_S = 1800.0  # of pauses in all, without progress between them
ATTEMPTS = 3  # at what a second try may mend, but hardly a fourth
_MOVED = (409, 412)  # or a commit whose first answer was lost: the next attempt finds out

T = TypeVar("T")

token_file_option = click.option(
    "--token-file", type=PATH, help="Holds the access token; else the credential hub-token, else HF_TOKEN."
)


class ModelHub(HubApi):
    """The client for one repository of a model."""

    def __init__(self, repo: str, token_file: Path | None) -> None:
        # The client's own warnings may hold a signed address; its bars say less than our lines.
        os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
        self.token = hub_token(None if token_file is None else str(token_file))
        super().__init__(HubRepo(repo, "model", endpoint_of(None), commanded=True), self.token)

    def commit(self, revision: str) -> str:
        """Returns the commit of a revision; UnavailableError where only a dataset or space has that name."""
        try:
            return super().commit(revision)
        except FetchFailed as failure:
            for kind in ("dataset", "space") if failure.kind in ("missing", "unauthorized") else ():
                with contextlib.suppress(FetchFailed):  # mostly because there is none
                    with self.asking("main"):
                        self.api.repo_info(self.hub.repo, repo_type=kind)
                    fault = f"{self.hub.repo} is a {kind} at {self.hub.endpoint}, not a model"
                    advice = "correct REPO, or make a model of that name there first"
                    raise UnavailableError(f"{fault}; {advice}") from failure
            raise


def persist(attempt: Callable[[], T], what: str, transfer: FileFetch | None = None) -> T:
    """Returns what `attempt` returns in the end; what passes is waited out, for PATIENCE_S in all.

    A `transfer` counts its failures itself, and resets its backoff after progress. Raises the error of the
    last failure, which begins with `what`.
    """
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S) if transfer is None else transfer.backoff
    counted, waited_s = Counter[str]() if transfer is None else transfer.failures, 0.0
    while True:
        try:
            return attempt()
        except FetchFailed as failure:
            if failure.status in _MOVED:
                failure.kind = "server"
            if transfer is None:
                counted[failure.kind] += 1
            pause_s = next_pause(failure, counted, ATTEMPTS, backoff.next())
            waited_s = (waited_s if backoff.failures > 1 else 0.0) + (pause_s or 0.0)
            futile = transfer is None and failure.kind == "broken" and counted["broken"] >= ATTEMPTS
            if pause_s is None or futile or waited_s > PATIENCE_S:
                again = "" if pause_s is None else "; it did not pass: give the command again later"
                raise _error_type(failure.kind)(f"{what}: {failure.reason}{again}") from failure
            click.echo(one_line(f"{failure.reason}; the next try is in {pause_s:.0f} s"), err=True)
            time.sleep(pause_s)


def _error_type(kind: str) -> type[StokerError]:
    if kind in LOCAL:
        return StorageError
    return DataError if kind in ("mismatch", "length") else UnavailableError
