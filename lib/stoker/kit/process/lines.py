"""Cuts a byte stream into lines of bounded length as its pieces arrive."""

from __future__ import annotations


class LineBuffer:
    """Collects bytes and returns whole lines; a line longer than `limit` bytes is dropped and counted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dropped = 0
        self._partial = bytearray()
        self._skipping = False  # inside a line already found to be too long

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes; returns the lines that they complete, without newlines."""
        lines: list[bytes] = []
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._add(piece)
            if not self._skipping:
                lines.append(bytes(self._partial))
            self._partial.clear()
            self._skipping = False
        self._add(rest)
        return lines

    def finish(self) -> list[bytes]:
        """Returns the text after the last newline, once the stream has ended."""
        rest = [bytes(self._partial)] if self._partial and not self._skipping else []
        self._partial.clear()
        return rest

    def _add(self, piece: bytes) -> None:
        if self._skipping:
            return
        if len(self._partial) + len(piece) > self.limit:
            self.dropped += 1
            self._skipping = True
            self._partial.clear()
        else:
            self._partial += piece
