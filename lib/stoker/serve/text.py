"""The text of a request, as its tokens arrive: whole characters alone, and cut at a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

CUT_IN_TWO = "\ufffd"  # what the bytes of a character decode to that is not complete


class Text:
    """Turns the tokens so far into text that is final: what came out is never taken back."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode, self._stops = decode, stops
        self._begin = self._read = (
            0  # tokens; decoded from `_begin`, for a token's text depends on the one before
        )
        self._before = self._held = ""
        self.stopped = False

    def add(self, tokens: Sequence[int], ended: bool) -> str:
        """Returns the new text; `tokens` are all so far, `ended` that no more follow."""
        decoded = self._decode(tokens[self._begin :])
        if decoded.endswith(CUT_IN_TWO):
            if not ended:
                return ""
            decoded = decoded.rstrip(CUT_IN_TWO)
        text = self._held + decoded[len(self._before) :]
        self._before = self._decode(tokens[self._read :])
        self._begin, self._read = self._read, len(tokens)
        return self._cut(text, ended)

    def _cut(self, text: str, ended: bool) -> str:
        """Returns the text before the first stop, without an end in which a stop may have begun."""
        # The one that is complete first: where it is cut does not depend on how many tokens came at once.
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self.stopped = bool(found)
        if found or ended:
            return text[: min(found)[1]] if found else text
        begun = [stop[:size] for stop in self._stops for size in range(1, len(stop))]
        most = max((len(part) for part in begun if text.endswith(part)), default=0)
        self._held = text[len(text) - most :]
        return text[: len(text) - most]
