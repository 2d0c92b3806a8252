"""Judges which part of a data path makes memory grow, from four runs over the same documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.config.units import format_bytes

READ, TOKENIZE, ACCUMULATE, RELEASE = "read", "tokenize", "accumulate", "release"
PATTERNS = {  # in the order they run
    READ: "read only",
    TOKENIZE: "tokenize and drop",
    ACCUMULATE: "accumulate",
    RELEASE: "accumulate, release",
}
LEAST_BYTES = 4 << 20  # smaller growth is that of allocators
LEAST_DOCUMENTS = 64
Culprit = Literal["reading", "tokenizing", "accumulating", "allocators"]


@dataclass(frozen=True)
class PatternRun:
    """A run of one pattern: the RSS before and after its documents, each of which it has seen before."""

    documents: int
    tokens: int
    begin_bytes: int
    end_bytes: int

    @property
    def grown_bytes(self) -> int:
        return self.end_bytes - self.begin_bytes

    def per_document(self) -> float:
        return self.grown_bytes / max(self.documents, 1)

    def per_token(self) -> float | None:
        return self.grown_bytes / self.tokens if self.tokens else None


@dataclass(frozen=True)
class Verdict:
    """`culprit` is None where nothing grows; the bytes are what is due to it, `released` what came back."""

    culprit: Culprit | None
    grown_bytes: int
    bytes_per_document: float
    bytes_per_token: float
    released_bytes: int
    sentence: str


def judge(runs: Mapping[str, PatternRun]) -> Verdict:
    """Names what makes memory grow, by the run of each pattern: the largest step from one to the next."""
    read, tokenize, accumulate, release = (runs[name] for name in PATTERNS)
    released = max(0, accumulate.grown_bytes - release.grown_bytes)
    steps: dict[Culprit, int] = {
        "reading": read.grown_bytes,
        "tokenizing": tokenize.grown_bytes - max(0, read.grown_bytes),
        "accumulating": release.grown_bytes - max(0, tokenize.grown_bytes),
        "allocators": released,
    }
    culprit = max(steps, key=lambda name: steps[name])
    grown = steps[culprit]
    documents, tokens = max(accumulate.documents, 1), max(accumulate.tokens, 1)
    if accumulate.documents < LEAST_DOCUMENTS or grown < LEAST_BYTES:
        few = accumulate.documents < LEAST_DOCUMENTS
        why = (
            "there are too few documents to tell" if few else f"nothing grows by {format_bytes(LEAST_BYTES)}"
        )
        return Verdict(None, grown, grown / documents, grown / tokens, released, f"No culprit: {why}.")
    amount = f"{grown / documents:,.0f} bytes a document, {grown / tokens:.1f} a token"
    sentence = f"{SENTENCES[culprit].format(amount=amount)} {_release(released, accumulate.grown_bytes)}"
    return Verdict(culprit, grown, grown / documents, grown / tokens, released, sentence)


SENTENCES: Mapping[Culprit, str] = {
    "reading": "Reading is what grows: {amount}, though no row is kept and each was read before.",
    "tokenizing": "Tokenizing is what grows: {amount}, though no token is kept and each text "
    "was seen before.",
    "accumulating": "Accumulating is what grows: {amount} stay in use because the tokens are kept; write "
    "them out, or keep them in an array of uint16 (2 bytes a token).",
    "allocators": "The allocators are what grows: {amount} are free inside the process and not given back; "
    "release them after each batch.",
}


def _release(released: int, grown: int) -> str:
    what = "Release (gc, Arrow's pool, malloc_trim) gave back"
    share = 100 * released / grown if grown > 0 else 0.0
    return f"{what} {format_bytes(released)} of {format_bytes(grown)} ({share:.0f} %)."
