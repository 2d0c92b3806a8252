"""What others ask of fetched files: that one leaves, that one comes again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.corpus.fetch.selection import Wanted, speaks_of, wanted_again
from stoker.corpus.records.sources import read_source
from stokerd.download.failures import FetchOutcomes
from stokerd.download.remote_lister import RemoteLister
from stokerd.download.source_kind import Desktop


class FetchRequests:
    """Answers them; each answer is durable before it is given."""

    def __init__(self, tools: Desktop, outcomes: FetchOutcomes, lister: RemoteLister) -> None:
        self._context, self._book = tools.context, tools.book
        self._pipeline, self._events = tools.context.pipeline, tools.context.events
        self._outcomes, self._lister = outcomes, lister

    def release(self, path: str, sha256: str, owner: str) -> dict[str, Any]:
        """Remove a file that the stage-shard loop needs no more: the intent first.

        `owner` is the path whose shard set stands for the content, another one for a duplicate.
        """
        receipt = self._book.receipts.get(path)
        if receipt is None:
            return {"refused": f"no receipt for {path}"}
        if not receipt.usable or receipt.sha256 != sha256:
            return {"receipt": receipt.state, "sha256": receipt.sha256}
        if kept := self._still_needed(path, sha256, owner):
            return {"refused": f"{path}: {kept}"}
        self._book.write(replace(receipt, state="releasing"))
        return {"receipt": "releasing"}

    def _still_needed(self, path: str, sha256: str, owner: str) -> str:
        """Why a file may not go, by the records on disk; empty when it may."""
        if self._pipeline.shard.release == "never":
            return "shard.release is never"
        safe = {"proven", "released"} if self._pipeline.warm is None else {"synced", "released"}
        for each, states in ((path, safe | {"duplicate"} if owner != path else safe), (owner, safe)):
            source = read_source(self._context.layout, self._book.dataset, each)
            if source is None or source.sha256 != sha256:
                return f"no source record of {each} speaks of that content"
            if source.state not in states:
                return f"the source {each} is {source.state}"
        return ""

    def fetch(self, path: str, sha256: str | None, listed: Wanted | None, by: str) -> dict[str, Any]:
        """Bring a file again that was removed or given up; `sha256` is the content meant, None for any."""
        receipt = self._book.receipts.get(path)
        if receipt is None:
            known = listed is not None
            return {"receipt": "none"} if known else {"refused": f"{self._lister.shown} does not list {path}"}
        if receipt.state == "given_up":
            self._outcomes.try_again(path)
            return {"receipt": "given_up"}
        if sha256 is not None and receipt.sha256 != sha256:
            return {"receipt": receipt.state, "sha256": receipt.sha256}
        wanted = listed or wanted_again(receipt, self._lister.repo)
        if wanted is None:
            return {"refused": f"{path} is not listed any more, and nothing tells where it is"}
        if receipt.state in ("released", "releasing") and speaks_of(receipt, wanted):
            self._book.write(replace(receipt, state="disputed"))
            self._events.record("fetch_asked", path=path, by=by)
        return {"receipt": self._book.receipts[path].state}
