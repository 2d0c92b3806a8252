"""What others ask of the stage-shard loop: to prove a set that looked wrong to them, and act on the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.corpus.records.index import KEY16
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import judge
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job
from stoker.kit.workers.retries import Retries
from stoker.store.requests import Request
from stokerd.common.request_box import RequestBox
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.outcomes import SourceOutcomes
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.source_store import SourceBook

PROVE_SET = "prove_set"


class SetRequests:
    """`to_prove` are the paths whose set on hot somebody wants proven.

    `verbs` are the other desks': each answers a request at once, or None while it is being acted on.
    """

    def __init__(
        self,
        box: RequestBox,
        *,
        book: SourceBook,
        yard: HotYard,
        outcomes: SourceOutcomes,
        patience: Retries,
        pinning: Pinning,
    ) -> None:
        self._box, self._book, self._yard, self._pinning = box, book, yard, pinning
        self._outcomes, self._patience = outcomes, patience
        self._asked: dict[str, list[Request]] = {}
        self.verbs: dict[str, Callable[[Request], Mapping[str, Any] | None]] = {}

    @property
    def to_prove(self) -> frozenset[str]:
        return frozenset(self._asked)

    def read(self) -> None:
        """Answer at once what can be; the rest waits for a proof."""
        self._asked = {}
        for request in self._box.read():
            if request.verb in self.verbs:
                answer = self.verbs[request.verb](request)
                if answer is not None:
                    self._box.finish(request, answer)
                continue
            if request.verb != PROVE_SET:
                self._box.finish(request, {"refused": f"unknown verb {request.verb}"})
                continue
            source = self._owner(request.args.get("key"))
            if source is None:
                self._box.finish(
                    request, {"verdict": "unknown", "reason": "no shard set of this key is on record"}
                )
            elif not source.hot:
                where = "on warm only" if source.evicted else f"not on hot, its source is {source.state}"
                self._box.finish(request, {"verdict": "invalid", "reason": f"the set is {where}"})
            else:
                self._asked.setdefault(source.path, []).append(request)

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """A proof that was asked for ended: first the record is right, then it is answered."""
        source = self._book.sources[job.subject]
        verdict = judge(ended)
        if verdict.fields is None:
            self._patience.failed(source.path)
            return
        proof: Mapping[str, Any] = verdict.fields["proofs"][0]
        if proof["missing"]:  # a look tells whether it is gone, or the whole disk
            self._yard.look_soon()
            self._patience.failed(source.path)
            return
        self._patience.succeeded(source.path)
        word, reason = proof["verdict"], str(proof["reason"])
        if word == "proven" and proof["manifest_sha256"] != source.manifest_sha256:
            word = "unreadable" if proof["cached"] else "invalid"
            reason = "its manifest is not the one on record"
        if word == "invalid" and source.state in PUBLISHED:
            self._outcomes.set_invalid(source, reason)
        for request in self._asked.pop(source.path, ()):
            self._box.finish(request, {"verdict": word, "reason": reason})

    def _owner(self, key: object) -> Source | None:
        key_of = self._pinning.key_of()
        sources = self._book.sources
        owner = sources.get(sources.of_key(str(key)[:KEY16]) or "")
        if owner is not None and owner.key == key:
            return owner
        return next((one for one in sources.values() if key_of and key_of(one.sha256) == key), None)
